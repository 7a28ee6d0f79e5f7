"""Validation on read: rows of a scan are compared with the documents of a primary before they are answered.

    core       what a primary is asked and answers; rows and documents -> verdicts, by the projector's own
               projection (pure)
    versions   which version of its document each row comes from, asked of the slices
    sql        a primary in a database, through SQLAlchemy
    topic      the source topic itself as the primary
    executor   threads, time-outs and connections around a primary that blocks
    page       a page while it is judged, and what has become of it
    service    what a scan calls

Only answers change: nothing here removes or repairs an entry. The way of an entry into and out of an index is
the topic, and a row that is dropped here will follow by that way, or by a repair of the index.

Imported by `indexer.scan.gather.service`, `indexer.scan.tasks` and `indexer.scan.http.endpoint`. It
imports the projector's pure core, alone in `indexer` (docs/adr/0016-validation-projects.md): a check by
another projection would find differences of its own.
"""
