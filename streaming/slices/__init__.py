"""What drivers read of slices, from the nodes that have them: whole indexes at one snapshot that is held, or
what slices under build sum up to. Called by `streaming.verify` and `streaming.repair`, and by
`streaming.backfill`: builds that begin with the slices of another layout, and all that compare what slices
store with what was projected."""
