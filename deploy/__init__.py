"""The composition root: everything that starts, wires and stops processes.

What lives here: finding Java (`java`), fetching the broker's and Spark's jars (`jars`), child processes that
die with their parent (`process`), the embedded Kafka broker (`kafka`), the local cluster made of them, and
commands that need several packages (`demo`, `doctor`, `trace`).

Who may import it: `tests` and `benchmarks`. `keytide.cli` finds its `commands` by entry points
(pyproject.toml). What it may import: everything.

Not to be touched lightly: the versions in `jars` and `ivy.xml` (they are a combination that was tried as a
whole), and the order in `process.ChildProcess` that makes sure no process outlives its parent.
"""
