"""A sample of a source, for the splits of RANGE indexes: `python -m streaming.sample --build ID`.

Started by `coordinator.process.driver_supervisor` before a build.
"""
