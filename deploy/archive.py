"""An archive of the classes of Spark's JVM, so that builds begin sooner (class-data sharing, JEP 350).

Theory of operation: half of what the start of a driver takes is finding, checking and linking 15,000 classes.
A JVM that was told to can write them to a file at its end, in the form that it has them in memory, and the
next one maps that file. So Spark is started once as a driver starts it, and runs a small stream. The file
belongs to one Java and to one folder of Spark's jars (`deploy.spark_home`): its name is a digest of those,
and a JVM that finds it not to fit does without.

It is optional: `python -m deploy.archive` makes it (20 s, 150 MB in the cache folder); a cluster that is
started here uses it if it is there.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.jars import cache_folder
from deploy.java import Java, JavaError, find_java
from deploy.spark_home import spark_environment, spark_home
from keytide.errors import KeytideError, RetryableError
from keytide.process.parent_death import die_with_parent
from keytide.settings.settings import Settings
from streaming.spark.session import session_options, start_session, warm_up

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEPT = 3
"""Archives in the cache folder, the newest ones."""
MAKING_LIMIT_S = 300.0


class ArchiveError(RetryableError):
    """The archive could not be made; the message has the end of what Spark said."""

    problem_type = "archive-not-made"


def archive_file(java: Java) -> Path:
    """Where the archive for this Java and these jars is, made or not."""
    of = f"{java.path} {java.version} {spark_home()}"
    return cache_folder() / "classes" / f"{hashlib.sha256(of.encode()).hexdigest()[:16]}.jsa"


def made_archive() -> Path | None:
    """The archive, if it was made."""
    try:
        file = archive_file(find_java())
    except JavaError:
        return None
    return file if file.exists() else None


def make() -> Path:
    """Make the archive, unless it is there.

    Raises:
        JavaError, JarsError: the Java parts are not to be had.
        ArchiveError: Spark did not start, or the JVM wrote none.
    """
    java = find_java()
    file = archive_file(java)
    if file.exists():
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    print("Archiving the classes of Spark's JVM (once; 20 s) ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix="making-") as made:
        written = Path(made, "spark.jsa")
        environment = java.environment({**os.environ, **spark_environment()})
        run = subprocess.run(
            [sys.executable, "-m", "deploy.archive", str(written)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=MAKING_LIMIT_S,
            preexec_fn=die_with_parent(),
        )
        if not written.exists():
            raise ArchiveError(
                f"Spark's classes were not archived (status {run.returncode}):\n{run.stdout.strip()[-2000:]}",
                next_step="It is not needed: builds begin some seconds later without it.",
            )
        written.rename(file)
    for old in sorted(file.parent.glob("*.jsa"), key=lambda one: one.stat().st_mtime)[:-KEPT]:
        old.unlink(missing_ok=True)
    return file


def write(file: Path) -> None:
    """Start Spark as a driver does, use it, and have its JVM write the archive at its end."""
    with tempfile.TemporaryDirectory() as scratch:
        options = session_options(
            Settings.model_validate({"build": {"spark_master": "local[2]"}}), Path(scratch)
        )
        options["spark.driver.extraJavaOptions"] += f" -XX:ArchiveClassesAtExit={file}"
        session = start_session(options)
        warm_up(session, 2).wait()
        query = (
            session.readStream.format("rate")
            .load()
            .writeStream.foreachBatch(_shuffle)
            .option("checkpointLocation", f"{scratch}/checkpoint")
            .trigger(once=True)
            .start()
        )
        query.awaitTermination()
        gateway: Any = session.sparkContext._gateway
        session.stop()
        gateway.proc.stdin.close()
        gateway.proc.wait()


def _shuffle(batch: DataFrame, _: int) -> None:
    batch.repartition(2, "value").collect()


if __name__ == "__main__":
    try:
        if sys.argv[1:]:
            write(Path(sys.argv[1]))
        else:
            print(make())
    except KeytideError as error:
        sys.exit(f"{error.message}\n{error.next_step}")
