"""Projection and routing of a batch: documents in, messages for the slices of each index out. Pure.

Used by the projector's service, by backfill (`streaming`) and by validation on read, so that the three cannot
diverge. `router.core` decides the slices.
"""
