"""What slices are asked by who compares them: verifications for digests and rows at a snapshot (`answering`),
builds for what their stores have made durable (`built`), builds of new layouts for the rows that these begin
with (`seeds`). Read from the snapshots of `indexer.view`. Called by `indexer.serve` only, the node's route
for such messages, in threads of the scan endpoint. Nothing here writes."""
