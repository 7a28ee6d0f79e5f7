"""The slices of this node: which there are, their runners, stores, snapshots and files; and what the scan
endpoint may see of them.

Everything here runs on the ingest thread but for `node`, whose reads are made for the endpoint's thread
(`indexer.view`). Called by `indexer.ingest`; wired, and asked for health, by `indexer.serve`.
"""
