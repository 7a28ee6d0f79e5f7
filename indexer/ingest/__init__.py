"""What a node hears: mutation queues, control and metadata, in one loop of one thread, which drives the
slices of `indexer.hosting` and reports to the coordinators.

`copy_worker` asks other nodes for copies of slices (`indexer.copying`), in threads of its own.
Called by `indexer.serve.service`; a gateway uses `consumer` and `metadata` without slices.
"""
