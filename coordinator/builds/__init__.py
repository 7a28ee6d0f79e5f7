"""Builds from BUILD INDEX to READY, one step at a time: registry, admission, sampling (splits), backfill,
completion, pausing, rebuilds of lost slices; which copies a build waits for (`copies`), what is told of it
(`phases`, `eta`), and how indexes go out of service, by DROP INDEX, too (`retirement`). Pure.

`registry` is the only way to change a build's state. Called by `coordinator.leader`.
"""
