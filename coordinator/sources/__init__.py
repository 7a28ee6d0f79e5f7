"""What builds read, and whether it has what they need: the source, a table in place of its beginning, the
slices of another layout. Pure judgements. Called by `coordinator.builds`, `coordinator.layouts`,
`coordinator.rollback` and `coordinator.statements`."""
