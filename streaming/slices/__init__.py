"""What drivers read of slices, from the nodes that have them: whole indexes at one snapshot that is held.
Called by verification, and by builds that begin with the slices of another layout."""
