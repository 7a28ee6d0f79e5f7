"""The scan endpoint: from a reader's request to rows of one snapshot, gathered in key order from all slices
of an index.

    request   what a reader may ask for (CONTRACT §5), and the answers' shapes
    selection request -> spans of entry keys, limits (pure)
    tokens    session and page tokens: opaque and signed (pure)
    rows      entries -> JSON rows (pure)
    choose    which snapshot number satisfies a request, or what it must wait for (pure)
    gather    scatter to slices here and on other nodes, merge in key order
    peers     reading another node's slices over HTTP

May be imported by `indexer.api` and `indexer.service` only; imports `keytide` and the seam `indexer.view`.
"""
