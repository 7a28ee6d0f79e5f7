"""Verifications and repairs: their registry and steps, by drivers of their own. Pure.

`registry` is the only way to change a job's state. Called by `coordinator.statements`, when one is ordered,
and `coordinator.builds.builds`, for its steps.
"""
