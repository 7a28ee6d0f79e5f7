"""Reading this node's own slices: a cursor over a snapshot, filters, limits, and that long reads give way.

Third on the way of a scan: answers the messages of `indexer.scan.peer` from `indexer.view`.
Called by `indexer.scan.gather` and by the tasks of other rooms, such as `indexer.scan.stream`.
"""
