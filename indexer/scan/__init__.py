"""The scan endpoint: from a reader's request to rows of one snapshot, gathered in key order from all slices
of an index. A scan reads from top to bottom in this order (ARCHITECTURE.md, "The way of a scan"):

    request    what a reader may ask, decoded and checked (pure)
    plan       which number, which spans of which slices, what keeps them
    peer       what nodes ask each other (pure)
    local      this node's slices: cursors, filters, limits
    gather     all slices as one stream in key order; pages; start at `service`
    shape      entries as rows and columns (pure)
    aggregate, stream, nearest, query, tail    what else is made of the same parts
    tasks      what slices can work out, of all of these
    http       routes, answers, problem documents, metrics, the OpenAPI page

A room knows those below it only: request and peer, plan, shape, local, gather, the five, tasks, http (a
contract in `pyproject.toml`). Imported by `indexer.serve` and `indexer.scan_processes`, who serve it, and
what it is made of by `indexer.validation`, `indexer.digests` and `indexer.copying` (`peer` only). Imports
`keytide`, the seam `indexer.view`, and `indexer.validation`.
"""
