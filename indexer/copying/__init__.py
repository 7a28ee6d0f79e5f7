"""Copies of slices on their way from node to node: what the one that fills a copy asks, and what the one that
has the slice answers.

    messages   the request for the next rows of a store, and the answer (pure; start here)
    source     answers from exports of this node's stores (pure)
    target     fills a store with the answers (pure)
    rate_limit holds a rate, by resting (pure)

Called by `indexer.ingest.copy_worker`, whose threads ask other nodes and fill, and `indexer.serve`, which has
`source` answer. May import the interface of the slices' stores and what nodes speak with each other; knows
neither Kafka nor scans.

Spoken between nodes of neighbouring releases: fields are added at the end, with defaults. Not to be touched
lightly: a target never mixes two generations, or a copy is of no moment at all, and looks whole.
"""
