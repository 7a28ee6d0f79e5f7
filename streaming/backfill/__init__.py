"""The build of indexes: `python -m streaming.backfill --build ID`, its driver and its micro-batches.

Started by the coordinator's driver supervisor; reports to it.
"""
