"""What the coordinator asks of Kafka: topics, the state of sources, open transactions, the log's
past, deletion of records; what documents have of the fields that an index is to be of.

Blocks: called from threads of `coordinator.process`, never from the control loop.
"""
