"""Projection and routing of a batch: documents in, messages for the slices of each index out. Pure.

Called by `projector.service`, by backfill (`streaming`) and by validation on read (`indexer.validation`), so
that the three cannot diverge. `router.core` decides the slices.
"""
