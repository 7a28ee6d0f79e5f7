"""Builds from BUILD INDEX to READY, one step at a time: registry, admission, backfill, completion, pausing,
rebuilds of lost slices. Pure.

`registry` is the only way to change a build's state; `builds` is called by the leader.
"""
