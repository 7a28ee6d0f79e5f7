"""Spark as its drivers are started here: pyspark's own, without the jars that no driver of Keytide needs and
with newer releases of some that have known faults.

Theory of operation: pyspark carries 280 jars, among them Hive with a database and a web of its own,
Kubernetes, ZooKeeper, and machine learning. A driver loads classes from a third of them; the others only
lengthen its class path and the list of what may be attacked. `SPARK_HOME` is where Spark looks for its jars,
so a folder of links does: everything of pyspark, and in `jars/` a link for each jar that stays. What stays
with known faults, and why they cannot be reached: docs/secure.md, "Java parts".

The folder lies in the cache, named after what it links to, and is made beside its place and moved there by
one rename, so that two processes never see half of it. A `SPARK_HOME` that is set is left alone.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from deploy.jars import cache_folder, jars_of, pyspark_jars
from keytide.errors import KeytideError
from streaming.spark.session import JARS_VARIABLE

LEFT_OUT = (
    # Hive: its shell and server, its metastore and what that is mapped onto
    "hive-beeline-", "hive-cli-", "hive-common-", "hive-exec-", "hive-jdbc-", "hive-metastore-",
    "hive-serde-", "hive-service-", "hive-shims-", "spark-hive", "datanucleus-", "derby", "libthrift-",
    "libfb303-", "jdo-api-", "javax.jdo-", "jta-", "transaction-api-", "jpam-", "HikariCP-",
    "commons-dbcp-", "commons-pool-", "antlr-runtime-", "ST4-", "stax-api-", "json-1", "javolution-",
    "super-csv-", "opencsv-", "oro-", "jodd-core-", "jline-2", "commons-lang-2",
    # Kubernetes, YARN, ZooKeeper
    "kubernetes-", "spark-kubernetes", "spark-yarn", "vertx-", "zjsonpatch-", "snakeyaml-engine-",
    "curator-", "zookeeper-",
    # machine learning and graphs
    "spark-mllib", "spark-graphx", "breeze", "arpack", "blas-", "lapack-", "JTransforms-", "JLargeArrays-",
    "spire", "algebra_", "cats-kernel_",
    # Spark Connect, Scala's shell
    "spark-connect", "spark-repl",
    # stores of states, HTTP and native libraries of Netty: plain sockets carry Spark's messages
    "rocksdbjni-", "netty-all-", "netty-codec-dns-", "netty-codec-http", "netty-codec-socks-",
    "netty-handler-proxy-", "netty-resolver-dns-", "netty-tcnative-", "netty-transport-native-epoll-",
    "netty-transport-native-kqueue-",
    # an older Jackson, for an older Avro
    "jackson-core-asl-", "jackson-mapper-asl-",
)  # fmt: skip
"""How the names of jars begin that are left out."""

KEPT = 3
"""Folders in the cache that stay, those that were used last."""
UNUSED_S = 30 * 86_400.0
"""The others go when they were not used for so long."""


def spark_home() -> Path:
    """The folder to give Spark as `SPARK_HOME`; made at the first call.

    Raises:
        JavaError, JarsError: the replacements are not to be had.
    """
    jars = sorted(jars_of_drivers(pyspark_jars(), jars_of("replacements")))
    package = pyspark_jars()[0].parent.parent
    folder = cache_folder() / "spark" / _digest([package, *jars])
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="making-") as made:
            home = Path(made, "home")
            _link(home, package, jars)
            try:
                home.rename(folder)
            except OSError:
                if not folder.exists():  # else another process was faster
                    raise
    with suppress(FileNotFoundError):
        os.utime(folder)
    used = {one: one.stat().st_mtime for one in folder.parent.glob("[0-9a-f]*")}
    for old in sorted(used, key=lambda one: used[one])[:-KEPT]:
        if time.time() - used[old] > UNUSED_S:  # (another installation may be at work with it)
            shutil.rmtree(old, ignore_errors=True)
    return folder


def spark_environment() -> dict[str, str]:
    """What a Spark driver is given as environment variables: Spark's home, unless there is one, and its Kafka
    connector; raises as `spark_home`."""
    home = os.environ.get("SPARK_HOME") or str(spark_home())
    return {"SPARK_HOME": home, JARS_VARIABLE: ",".join(map(str, jars_of("spark")))}


def jars_of_drivers(bundled: Iterable[Path], replacements: Iterable[Path]) -> list[Path]:
    """The jars that a driver gets: those bundled that are not left out, each in its newer release if there is
    one."""
    newer = {artifact(jar): jar for jar in replacements}
    return [newer.get(artifact(jar), jar) for jar in bundled if not jar.name.startswith(LEFT_OUT)]


def artifact(jar: Path) -> str:
    """The name of a jar without its version: `netty-common` of `netty-common-4.1.118.Final.jar`."""
    versioned = re.match(r"(.+)-\d+\.\d", jar.stem)  # the last one: there is a `log4j-1.2-api`
    return versioned[1] if versioned else jar.stem


def _link(home: Path, package: Path, jars: Iterable[Path]) -> None:
    (home / "jars").mkdir(parents=True)
    for entry in package.iterdir():
        if entry.name != "jars":
            (home / entry.name).symlink_to(entry)
    for jar in jars:
        (home / "jars" / jar.name).symlink_to(jar)


def _digest(paths: Iterable[Path]) -> str:
    """Of the jars with their times: an archive of their classes (`deploy.archive`) fits these only."""
    told = "\n".join(f"{path} {path.stat().st_mtime_ns}" for path in paths)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


if __name__ == "__main__":
    try:
        print(spark_home())
    except KeytideError as error:
        sys.exit(f"{error.message}\n{error.next_step}")
