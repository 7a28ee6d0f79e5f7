"""A sample of a source, for the splits of RANGE indexes: `python -m streaming.sample --build ID`.

Started by the coordinator's driver supervisor before a build.
"""
