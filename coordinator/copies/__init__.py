"""Copies of slices: which are taken out, which are filled in their place, and when one counts. Pure.

Told by `coordinator.leader`. The only room that changes where the slices of a READY index are; what a build
places is `coordinator.catalog.placement`.
"""
