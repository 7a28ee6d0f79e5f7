"""The scan endpoint: from a reader's request to rows of one snapshot, gathered in key order from all slices
of an index.

    request   what a reader may ask for (docs/reference)
    selection request -> spans of entry keys, slices, limits (pure)
    tokens    session and page tokens: opaque and signed (pure)
    rows      entries -> JSON rows (pure)
    choose    which snapshot number satisfies a request, or what it must wait for (pure)
    writing   values as JSON
    answer    the answer as JSON
    directory what scans look up in the catalog
    news      waiting for a later snapshot, for as long as the reader is there
    agree     choosing a first page's snapshot, again while a slice does not hold it
    leases    keeping the snapshots of page tokens and holds
    held      one moment that many reads share
    scatter   one request to every node that is needed
    gather    many slices' entries in key order; counts
    pages     pages of a held snapshot, one after the other, for streams
    paging    a page of a scan or a query, and the token of the next
    reading   what nodes ask each other
    picking   a slice's filters, distinct keys and offsets, in bounded pieces (any thread)
    filtering a reader's condition as a function of entries
    tasks     what else slices can work out (`task_list` names them)
    local     reading this node's slices
    peers     reading other nodes' slices over HTTP
    shared    what every kind of read shares of these
    service   the way of a scan, a count and a held snapshot through them
    aggregate*, query*            aggregates; SELECT on the index that its plan names
    streaming*, ndjson, arrow*    streams, their blocks and their two forms
    tail*     what changes from snapshot to snapshot, as events
    http      what all routes share
    routes    the routes of scans, counts and held snapshots
    shown     what the OpenAPI page says of answers (pure)

May be imported by `indexer.serve.api` and the node's shell only; imports `keytide` and the seam
`indexer.view`.
"""
