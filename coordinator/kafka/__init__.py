"""What the coordinator asks of Kafka: topics, source facts, ids, open transactions, the log's past, deletion
of records.

Blocks: called from threads of `coordinator.process`, never from the control loop.
"""
