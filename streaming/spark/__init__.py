"""Spark as drivers use it: the session's settings, its checkpoint, and errors that it wraps.

The only place that knows Spark's settings.
"""
