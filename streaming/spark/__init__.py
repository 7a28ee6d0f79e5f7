"""Spark as drivers use it: the session's settings, its checkpoint, and errors that it wraps.

The only place that knows Spark's settings. Imported by `streaming.drivers`, `streaming.stages` and
`streaming.backfill`, and by `deploy`, which keeps what a session of Spark has loaded.
"""
