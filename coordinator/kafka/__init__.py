"""What the coordinator asks of Kafka: topics, the state of sources, open transactions, the log's
past, deletion of records; what documents have of the fields that an index is to be of.

Blocks. Called by `coordinator.process`, from threads of its own, never from the control loop; and by routes
of `coordinator.http`.
"""
