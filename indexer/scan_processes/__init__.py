"""Scan processes: processes beside a node's own that answer pages and counts from its slices (ADR 33).

`core.messages` is what the node tells them, and what they tell it; `channel` carries it; `telling` and
`supervisor` work in the node's process, `core.pins`, `core.leases`, `node`, `pages` and `passing` in theirs.
Called by `indexer.serve` only. It reads snapshots that the node holds, and holds none by itself: whatever
decides what is kept stays in `indexer.hosting.snapshots`.
"""
