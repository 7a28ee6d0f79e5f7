"""What a slice does: a state machine from events (segments, timestamps, chunks, rollbacks) to instructions
(commit, step back, stop). Pure.

Driven by `indexer.hosting.slice_runner` and by the simulation. Imports the types of
`indexer.store.interface`, and nothing that does I/O. The rules R1 to R35 of docs/protocol.md are carried out
here.
"""
