"""What a node and its scan processes say to each other; what a process makes of it: pins, leases. Pure.

Called by both ends, which are `indexer.scan_processes`. Spoken within one release only.
"""
