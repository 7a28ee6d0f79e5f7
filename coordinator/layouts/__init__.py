"""New layouts of an index while the old one serves: when one takes over its name, and when the other goes.
Pure.

Told by `coordinator.leader`. A layout is an index of its own with the same name: an id, queues, slices and a
build, that are never those of another one (R50). Statements that begin one are in
`coordinator.statements.replacing`.
"""
