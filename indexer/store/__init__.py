"""A slice's store: entries, back index, skip ledger and state, on disk (LMDB). Tests and the simulation
have one in dictionaries, `tests/memory_store`, which must do the same.

    interface    what a store is to the rest of the indexer: Applied, SliceStore, StoreSnapshot (start here)
    copies       what takes the rows of a store on another node (what gives them: interface, StoreExport)
    settings     limits and sizes, with their reasons
    environment  opening LMDB, room on disk, errors in our families
    lmdb         the real store: base, frozen delta, delta; reading, writing, loading, bulk, merge, copying
    resolve      documents + what is held -> what to write (pure): versions, moves, removals
    fold         merging a frozen delta into the base, in a process of its own, with the way back
    formats      bytes on disk: records, state (pure)
    files        files beside and below LMDB: pages, their checksums, the filter
    integrity    whether a base is what was written; forward entries against the back index

Imported by `indexer.slice` and `indexer.unique` (interface only), `indexer.copying` (also `copies`),
`indexer.hosting` and `indexer.ingest`; imports `keytide`. This file imports nothing, so that the fold worker
stays small.

Not to be touched lightly: the order of steps in a fold (undo file, filter, base, checksums, delta dropped)
and the fence in the base (`indexer.store.fold.fold.OWNER_KEY`) are what a kill -9 relies on. The layout of
records is on the disks of running clusters: `indexer.store.environment.FORMAT` names it; undo, checksum and
filter files name theirs.
"""
