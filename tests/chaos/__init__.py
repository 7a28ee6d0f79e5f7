"""Chaos: writers, readers, builds and faults against a running cluster, and an oracle that shares no code
with it. `python -m tests.chaos --minutes N --seed S`.

Theory of operation. Writers change the documents of a few source topics without pause. Readers scan all
indexes through all nodes and compare every answer with what plain Python (`truth`, on `tests.oracle`) makes
of the source at the answer's own timestamp; so nothing has to stand still to be checked. A builder creates,
builds, cancels, drops and creates again. Faults strike local processes by a schedule that follows from the
seed. In the end all faults are taken back, and everything must get READY and fresh within a limit.

The seed decides what is tried and when, not how the processes interleave: a failure's seed makes it likely to
come again, not certain. (After Jepsen: a workload, a nemesis, a checker; the checker works all the time.)
"""
