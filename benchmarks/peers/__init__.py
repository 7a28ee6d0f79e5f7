"""Peers: others that do the same job, on the same documents, in the same run as Keytide.

    comparing      the benchmark `peers`: whose turn it is, what comes of it
    spread         minimum, median and maximum of the runs, and the ratios; pure
    turn           a Kafka of its own, filled while a peer stands still; how its rate is counted
    own            Keytide's turn
    postgresql     PostgreSQL: COPY and upsert, COPY and index, ranges by pgbench; `scan_load` and `spatial`
                   ask it too
    kafka_streams  Kafka Streams, the program in `streams/`
    quix_streams   Quix Streams, in a virtual environment of its own, which has `quix_worker` run

Nothing of them is among what Keytide installs. Whichever cannot be had says in a line how to get it, and the
others go on.
"""
