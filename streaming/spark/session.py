"""Spark for a backfill: the session's settings and the Kafka source's. Pure, but for `start_session`.

Theory of operation
===================
The connector's jars come as a list in KEYTIDE_SPARK_JARS (paths, separated by commas), which `keytide up`
sets to what it has fetched; without it Spark itself fetches them from Maven Central
(`spark.jars.packages`).

Local masters get retries: `local[2]` means that one failed task fails the job, `local[2,4]` that it is
tried four times. Adaptive execution is off: it would merge the shuffle's small partitions and so undo "one
task per slice". All of it can be overridden by `build.spark_options`.

On another master the executors need three things. Jars: the driver serves them its own. Python: the path of
one is `build.worker_python`, by default that of the driver. And what tasks import, Keytide with its
dependencies: in that Python, or in the folders of `build.worker_path`. They share no folder with the driver:
the checkpoint is the driver's alone, shuffles are Spark's, and tasks write to Kafka. An executor that dies
costs the tasks that ran there and the shuffle files that it had; Spark runs those again.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from keytide.process.worker import Worker, logged
from keytide.settings.settings import Settings

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

JARS_VARIABLE = "KEYTIDE_SPARK_JARS"
ARCHIVE_VARIABLE = "KEYTIDE_SPARK_ARCHIVE"
"""An archive of the JVM's classes (`deploy.archive`)."""
HERE = Path(__file__).resolve().parents[2]
"""The folder that Keytide's packages are in."""
LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_TASK_ATTEMPTS = 4
_TASKS_PER_CORE = 4
_PACKAGES = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.12.0",
)

SOURCE_OPTIONS: dict[str, str] = {
    "startingOffsets": "earliest",
    "failOnDataLoss": "true",
    "kafka.isolation.level": "read_committed",
}
"""Options of the Kafka source. It plans micro-batches, and reads no record: tasks do (ADR 20)."""


def master_with_retries(master: str) -> str:
    """`local`, `local[n]` and `local[*]` with task retries; other masters have them."""
    found = re.fullmatch(r"local(?:\[(\*|\d+)\])?", master)
    return f"local[{found[1] or 1},{_TASK_ATTEMPTS}]" if found else master


def connector(environ: Mapping[str, str], spark_version: str, more: Iterable[str] = ()) -> dict[str, str]:
    """Where Spark gets its Kafka connector from, and `more` jars (paths or URLs)."""
    if jars := environ.get(JARS_VARIABLE):
        return {"spark.jars": _jar_list([*jars.split(","), *more])}
    packages = {"spark.jars.packages": ",".join(_PACKAGES).format(spark=spark_version)}
    return {**packages, **({"spark.jars": _jar_list(more)} if more else {})}


def _jar_list(jars: Iterable[str]) -> str:
    return ",".join(jar if ":" in jar else os.path.abspath(jar) for jar in jars)


def java_options(rows: bool) -> str:
    """How a JVM compiles and collects.

    Tasks read documents past the JVM (ADR 20), and the optimising compiler never earns what it costs: 5
    million documents take 19 s of the JVM's processor time with the quick compiler alone and 31 s with both
    (2 cores). Rows of a table go through the JVM, so there it may.
    """
    return "-XX:+UseParallelGC" if rows else "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


def sharing(environ: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    """Has the driver's JVM map the archive of its classes, if there is one. One that does not fit is ignored,
    without a word."""
    archive = environ.get(ARCHIVE_VARIABLE)
    if not archive or not Path(archive).exists():
        return {}
    name = "spark.driver.extraJavaOptions"
    shared = f"{_quoted(f'-XX:SharedArchiveFile={archive}')} -Xlog:cds=off -Xlog:class+path=off"
    return {name: f"{options.get(name, '')} {shared}".strip()}


def session_options(settings: Settings, scratch: Path, *, rows: bool = False) -> dict[str, str]:
    """Spark's configuration, `build.spark_options` last.

    Args:
        scratch: folder for shuffle files, absolute; the JVM works in it too, and has its temporary files
            there: Spark 4.0 leaves a folder `artifacts` wherever it was started, and others, with native
            libraries, in the system's temporary folder, where nobody removes them after kill -9.
        rows: whether rows of a table go through the JVM.
    """
    master = master_with_retries(settings.build.spark_master)
    local = master.startswith("local")
    return {
        "spark.master": master,
        "spark.app.name": "keytide-backfill",
        "spark.driver.memory": settings.build.driver_memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.local.dir": str(scratch),
        "spark.speculation": "false",
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "streaming.workers",
        "spark.driver.extraJavaOptions": " ".join(
            (
                java_options(rows),
                _quoted(f"-Duser.dir={scratch}"),
                _quoted(f"-Djava.io.tmpdir={scratch}"),
            )
        ),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(32 << 20),
        "spark.sql.streaming.pollingDelay": "50ms",
        **(LOOPBACK if local else _executors(settings, rows)),
        **settings.build.spark_options,
    }


def _executors(settings: Settings, rows: bool) -> dict[str, str]:
    """What the executors of a cluster must be told."""
    return {
        "spark.executor.extraJavaOptions": java_options(rows),
        "spark.pyspark.python": settings.build.worker_python or sys.executable,
        "spark.executorEnv.PYTHONPATH": settings.build.worker_path or str(HERE),
        "spark.executorEnv.OPENBLAS_NUM_THREADS": "1",
    }


def shuffle_partitions(targets: int, parallelism: int) -> int:
    """One for each target, but no more than keep all cores busy."""
    return max(1, min(targets, _TASKS_PER_CORE * max(2, parallelism)))


def source_options(settings: Settings, topic: str) -> dict[str, str]:
    """Options of the Kafka source for one keyspace."""
    return {
        **SOURCE_OPTIONS,
        "kafka.bootstrap.servers": settings.kafka.bootstrap,
        "subscribe": topic,
        "maxOffsetsPerTrigger": str(settings.build.batch_documents),
        **_security(settings.kafka.model_extra or {}),
    }


def _security(client: Mapping[str, object]) -> dict[str, str]:
    """librdkafka's security settings in the Java client's words; everything else is left out."""
    found = {name: str(value) for name, value in client.items()}
    options = {
        f"kafka.{name}": value
        for name, value in found.items()
        if name in ("security.protocol", "ssl.endpoint.identification.algorithm", "client.dns.lookup")
    }
    mechanism = found.get("sasl.mechanism") or found.get("sasl.mechanisms")
    if mechanism:
        options["kafka.sasl.mechanism"] = mechanism
    if mechanism and "sasl.username" in found:
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        user, password = _quoted(found["sasl.username"]), _quoted(found.get("sasl.password", ""))
        options["kafka.sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{module} required username={user} password={password};"
        )
    if "ssl.ca.location" in found:
        options["kafka.ssl.truststore.type"] = "PEM"
        options["kafka.ssl.truststore.location"] = found["ssl.ca.location"]
    if "ssl.keystore.location" in found:
        options["kafka.ssl.keystore.location"] = found["ssl.keystore.location"]
        options["kafka.ssl.keystore.password"] = found.get("ssl.keystore.password", "")
    return options


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def start_session(options: Mapping[str, str], jars: Iterable[str] = ()) -> SparkSession:
    """Start Spark in this process (its JVM is a child of it, and ends when it does).

    Args:
        jars: further ones, beside the Kafka connector's.
    """
    import pyspark
    from pyspark.sql import SparkSession

    if python := options.get("spark.pyspark.python"):
        os.environ["PYSPARK_PYTHON"] = python  # the only place where pyspark looks
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if options.get("spark.master", "local").startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    paths = [str(HERE), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    given = {"spark.jars", "spark.jars.packages"} & set(options)
    connecting = {} if given else connector(os.environ, pyspark.__version__, tuple(jars))
    builder = SparkSession.builder
    for name, value in {**connecting, **options, **sharing(os.environ, options)}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def warm_up(session: SparkSession, partitions: int) -> Worker:
    """Have Spark start its Python workers while the query is still being planned.

    Workers take about as long to start as the first micro-batch takes to plan; together they take half. The
    job has the form of a micro-batch's, so that the classes which that needs are loaded, too.

    Args:
        partitions: of the shuffle.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    tasks = session.sparkContext.defaultParallelism

    def run() -> None:
        try:
            (
                session.range(tasks, numPartitions=tasks)
                .mapInArrow(_same, "id long")
                .repartition(partitions, "id")
                .sortWithinPartitions("id")
                .mapInArrow(_same, "id long")
                .collect()
            )
        except (PySparkException, Py4JError) as error:  # the query tells what is wrong, if it meets it too
            log.debug("warming up failed: %s", error)

    worker = Worker("warm-up", logged, run)
    worker.open()
    return worker


def _same(batches: Iterable[RecordBatch]) -> Iterable[RecordBatch]:
    return batches
