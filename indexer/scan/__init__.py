"""The scan endpoint: from a reader's request to rows of one snapshot, gathered in key order from all slices
of an index.

    request   what a reader may ask for (CONTRACT §5)
    selection request -> spans of entry keys, slices, limits (pure)
    tokens    session and page tokens: opaque and signed (pure)
    rows      entries -> JSON rows (pure)
    choose    which snapshot number satisfies a request, or what it must wait for (pure)
    answer    the answer as JSON
    directory what scans look up in the catalog
    news      waiting for a later snapshot, for as long as the reader is there
    agree     choosing a first page's snapshot, again while a slice does not hold it
    leases    keeping a page token's snapshot
    gather    scatter to slices here and on other nodes, merge in key order
    reading   what nodes ask each other
    local     reading this node's slices
    peers     reading other nodes' slices over HTTP
    service   the way of a scan through all of these

May be imported by `indexer.api` and the node's shell only; imports `keytide` and the seam `indexer.view`.
"""
