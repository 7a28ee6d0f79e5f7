"""What a slice does: a state machine from events (segments, timestamps, chunks, rollbacks) to instructions
(commit, step back, stop). Pure.

Driven by `indexer.hosting.slice_runner` and by the simulation. Imports the types of
`indexer.store.interface`, and nothing that does I/O. Of the rules of docs/protocol.md those that a slice
keeps are carried out here, each named where it is: what is cut and waited for, commits, rollbacks, builds,
corrections.
"""
