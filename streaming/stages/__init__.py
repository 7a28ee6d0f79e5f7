"""What tasks do, in the Python workers of Spark or in the driver: reading a share of the source, projecting,
sorting, sending.

Functions over Arrow batches. Whatever is imported here is imported by every worker. Called by
`streaming.backfill`, `streaming.sample` and `streaming.verify`.
"""
