"""What the coordinator asks of Kafka: topics, the state of sources, open transactions, the log's
past, deletion of records; what documents have of the fields that an index is to be of.

Blocks. Called by `coordinator.process`: before it leads, and then from threads of its own; and by routes of
`coordinator.http`. The control loop itself polls `heard_topics`, and asks nothing else.
"""
