"""Verifications and repairs: their registry and steps, by drivers of their own. Pure.

`registry` is the only way to change a job's state; `jobs` is called by the leader.
"""
