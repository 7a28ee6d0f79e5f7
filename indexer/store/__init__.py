"""A slice's store: entries, back index, skip ledger and state, on disk (LMDB) or in memory (simulation).

    interface    what a store is to the rest of the indexer: Applied, SliceStore, StoreSnapshot (start here)
    settings     limits and sizes, with their reasons
    lmdb_store   the real store: base, frozen delta, delta (base, loading, folding: its parts)
    memory       the same behaviour in dictionaries, without a disk (memory_snapshot: reading it)

    window       segments and chunks -> columns of documents (numpy, no per-document objects)
    documents    those columns: the newest version of each document
    records      bytes of back index records and ledger lines
    resolve      documents + what is held -> what to write (pure): versions, moves, removals
    filter       which documents may be held, so that hearing costs little
    environment  opening LMDB, room on disk, errors in our families
    levels       a level's life: views (read transactions), retirement, deletion
    writing      changes -> one LMDB transaction, with markers (delta) or without (base)
    loading      a backfill micro-batch into the base, against what is held
    bulk         a backfill micro-batch into an empty base, by appending (sorting: back index rows, by id)
    merge        several sorted levels -> one sorted stream, newest wins
    snapshot     reading a commit
    fold         merging a frozen delta into the base (runs in the fold worker's process)
    fold_worker  the handle on that process (fold_process: what runs in it)
    watched      child processes that are ended when they stand still
    undo         what a fold overwrote, as a file (journal: all of them, as the store sees them)
    states       bytes of a state
    pages        LMDB's file as pages, from outside
    checksums    of those pages, after every commit
    opening      whether a base is what was written (examine: the long way, in a process of its own)
    mirror       forward entries against the back index

May be imported by the indexer's core (interface, settings, memory), its service and the tests; imports
`keytide`. This file imports nothing, so that the fold worker stays small.

Not to be touched lightly: the order of steps in a fold (undo file, filter, base, checksums, delta dropped)
and the fence in the base (`fold.OWNER_KEY`) are what a kill -9 relies on. The layout of records is on the
disks of running clusters: `environment.FORMAT` names it; undo, checksum and filter files name theirs.
"""
