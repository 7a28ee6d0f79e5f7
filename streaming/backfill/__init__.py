"""The build of indexes: `python -m streaming.backfill --build ID`, its driver and its micro-batches.

Started by `coordinator.process.driver_supervisor`; reports to it.
"""
