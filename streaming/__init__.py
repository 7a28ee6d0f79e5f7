"""Work over whole topics, by Spark Structured Streaming: backfill now; verification and repair by the same
read.

What lives here: the job that reads a keyspace from its earliest offset in micro-batches that a journal tells
of, projects with the projector's own core, keeps the newest version of each document, sorts by slice and key,
and writes chunks and batch ends into the backfill queues. Spark's Kafka source plans the micro-batches; tasks
read their extents themselves (ADR 20). Beside it, and apart from it, `source`: the data source by which
users' Spark jobs read indexes.

Its drivers are started by `coordinator.process`, as `python -m streaming.<task>`. Who may import it: `deploy`
(`spark`) and `pyspark_keytide` (`source`) only. What it may import: `keytide` and the pure cores of
`projector` and `router`.

Not to be touched lightly: a build over a hole must fail, not guess (`failOnDataLoss` stays on, and
`stages.source_reader` holds to the same), and a micro-batch may run twice, so its output must be the same
both times.
"""
