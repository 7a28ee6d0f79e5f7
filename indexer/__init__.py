"""The indexer: slices, their stores, their snapshots, and the scan endpoint in front of them.

What lives here: the pure core that decides what a slice does with a segment (skip, cut, drop, apply, wait),
the store (a durable base and volatile deltas in LMDB), the ring of snapshots, the fold worker, and the HTTP
endpoint that picks a timestamp, scatters to slices and gathers in key order.

Started by `deploy.cluster`, as `python -m indexer`. Who may import it: `deploy.commands` only, for the
gateway. What it may import: `keytide`; `validation.core.verdicts` alone also `projector.core.projection` (ADR
16).

Not to be touched lightly: one commit carries entries, back index, ledger, timestamp, number and queue
position together. Splitting it tears snapshots on the first crash.
"""
