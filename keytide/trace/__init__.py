"""The hops of a document, from its topic to a published snapshot, as they are found in messages. Pure.

    changes   what a segment does with one record
    logs      what the messages of a topic say, one after the other
    records   what is known of the record and of an index, and what is told of each hop
    hops      puts them together: when each hop was, or what it waits for

Called by `deploy.trace` (`keytide trace`), and by `benchmarks.hops` for many documents at once. It reads what
there is in any case: nothing is sent for it. What it imports: `wire`, `catalog`, `model`.
"""
