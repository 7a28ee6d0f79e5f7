"""What the coordinator asks of Kafka: topics, the state of sources, open transactions, the log's
past, deletion of records.

Blocks: called from threads of `coordinator.process`, never from the control loop.
"""
