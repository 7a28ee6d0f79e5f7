"""Spark for a backfill: the session's settings and the Kafka source's. Pure, but for `start_session`.

Theory of operation
===================
The connector's jars come as a list in KEYTIDE_SPARK_JARS (paths, separated by commas), which `keytide up`
sets to what it has fetched; without it Spark itself fetches them from Maven Central
(`spark.jars.packages`).

Local masters get retries: `local[2]` means that one failed task fails the job, `local[2,4]` that it is
tried four times. Adaptive execution is off: it would merge the shuffle's small partitions and so undo "one
task per slice". All of it can be overridden by `build.spark_options`.

With a standalone cluster, Keytide must be installed on the workers, with the same Python; `data_dir` must
be a folder that driver and workers share only if Spark's own scratch needs it: tasks write to Kafka alone.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from keytide.settings import Settings

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

JARS_VARIABLE = "KEYTIDE_SPARK_JARS"
SHORT_BUILD_DOCUMENTS = 3_000_000
_TASK_ATTEMPTS = 4
_TASKS_PER_CORE = 4
_PACKAGES = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:{spark}",
    "org.apache.kafka:kafka-clients:3.9.0",
    "org.apache.commons:commons-pool2:2.12.0",
)

SOURCE_OPTIONS: dict[str, str] = {
    "startingOffsets": "earliest",
    "failOnDataLoss": "true",
    "kafka.isolation.level": "read_committed",
    "kafka.max.poll.records": "200000",
    "kafka.max.partition.fetch.bytes": str(4 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
    "kafka.fetch.max.wait.ms": "10",
    "kafka.receive.buffer.bytes": str(1 << 20),
}
"""Options of the Kafka source.

After every poll Spark asks for the partition's first and last offset, over the same connection and by
moving its position: what was fetched ahead is thrown away, and the answer waits behind a fetch that is
under way. So a poll takes all that a fetch brought (500 records by default), and a fetch at the end of the
log does not wait there (500 ms by default: more than a third of the time of a share of 125,000 documents).
"""


def master_with_retries(master: str) -> str:
    """`local`, `local[n]` and `local[*]` with task retries; other masters have them."""
    found = re.fullmatch(r"local(?:\[(\*|\d+)\])?", master)
    return f"local[{found[1] or 1},{_TASK_ATTEMPTS}]" if found else master


def connector(environ: Mapping[str, str], spark_version: str) -> dict[str, str]:
    """Where Spark gets its Kafka connector from."""
    if jars := environ.get(JARS_VARIABLE):
        return {
            "spark.jars": ",".join(jar if ":" in jar else os.path.abspath(jar) for jar in jars.split(","))
        }
    return {"spark.jars.packages": ",".join(_PACKAGES).format(spark=spark_version)}


def java_options(documents: int) -> str:
    """How the driver's JVM compiles and collects.

    A short build ends before the optimising compiler has earned what it costs (measured on 2 cores: 1 million
    documents take 11 s of CPU with the quick compiler alone and 16 s with both; 4 million 25 and 23).
    """
    if documents < SHORT_BUILD_DOCUMENTS:
        return "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    return "-XX:+UseParallelGC"


def session_options(settings: Settings, scratch: Path, documents: int) -> dict[str, str]:
    """Spark's configuration, `build.spark_options` last.

    Args:
        scratch: folder for shuffle files, absolute; the JVM works in it too, for Spark 4.0 leaves a folder
        `artifacts` wherever it was started.
        documents: about how many the build has still to read.
    """
    master = master_with_retries(settings.build.spark_master)
    local = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
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
        "spark.driver.extraJavaOptions": f"{java_options(documents)} {_quoted(f'-Duser.dir={scratch}')}",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(32 << 20),
        "spark.sql.streaming.pollingDelay": "50ms",
        **(local if master.startswith("local") else {}),
        **settings.build.spark_options,
    }


def shuffle_partitions(slots: int, parallelism: int) -> int:
    """One for each slot, but no more than keep all cores busy."""
    return max(1, min(slots, _TASKS_PER_CORE * max(2, parallelism)))


def source_options(settings: Settings, topic: str, batch_documents: int) -> dict[str, str]:
    """Options of the Kafka source for one keyspace."""
    return {
        **SOURCE_OPTIONS,
        "kafka.bootstrap.servers": settings.kafka.bootstrap,
        "subscribe": topic,
        "maxOffsetsPerTrigger": str(batch_documents),
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


def start_session(options: Mapping[str, str]) -> SparkSession:
    """Start Spark in this process (its JVM is a child of it, and ends when it does)."""
    import pyspark
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    here = str(Path(__file__).resolve().parent.parent)
    paths = [here, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    given = {"spark.jars", "spark.jars.packages"} & set(options)
    jars = {} if given else connector(os.environ, pyspark.__version__)
    builder = SparkSession.builder
    for name, value in {**jars, **options}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def warm_up(session: SparkSession) -> threading.Thread:
    """Have Spark start its Python workers while the query is still being planned.

    Workers take about as long to start as the first micro-batch takes to plan; together they take half.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    tasks = session.sparkContext.defaultParallelism

    def run() -> None:
        try:
            session.range(tasks, numPartitions=tasks).mapInArrow(_same, "id long").collect()
        except (PySparkException, Py4JError) as error:  # the query tells what is wrong, if it meets it too
            log.debug("warming up failed: %s", error)

    thread = threading.Thread(target=run, name="warm-up", daemon=True)
    thread.start()
    return thread


def _same(batches: Iterable[RecordBatch]) -> Iterable[RecordBatch]:
    return batches
