"""The projector: from documents in a keyspace to the secondary keys of all its indexes.

What lives here: `core`, pure, which turns a batch of records into keys (and is the only code that does, so
that live projection and backfill cannot diverge), and the service around it, which reads the source topic
once for all indexes, has the router cut segments, produces them, and commits source offsets after every
slice's message is acknowledged.

Started by `deploy.cluster`, as `python -m projector`. Who may import it: `streaming`, `deploy.trace` and
`indexer.validation.core.verdicts` only, and nothing but `core`. What it may import: `keytide` and `router`.

Not to be touched lightly: the order produce, acknowledge, commit (a commit that comes early loses documents),
and the end of a segment, which is the consumer's position and not the last record plus one.
"""
