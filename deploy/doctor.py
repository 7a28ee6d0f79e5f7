"""`keytide doctor`: looks at what a cluster needs and says, for each thing that is wrong, what to do."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from deploy.jars import broker_classpath, spark_jars
from deploy.java import find_java
from deploy.up import read_state, running_pid
from keytide.cli.admin import Admin
from keytide.cli.output import out, print_json, table
from keytide.errors import KeytideError
from keytide.settings import load_settings

_LOW_DISK_BYTES = 2 * 1024**3


@dataclass(frozen=True, slots=True)
class Finding:
    """One check. `advice` says what to do when it is not ok."""

    check: str
    ok: bool
    found: str
    advice: str = ""


def run(kafka: str | None, data_dir: Path, as_json: bool) -> int:
    """Print all findings; exit status 1 if any is not ok."""
    findings = list(examine(kafka, data_dir))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        rows = [("ok" if f.ok else "NOT OK", f.check, f.found, f.advice) for f in findings]
        table("Keytide doctor", ("", "check", "found", "what to do"), rows)
        out.print("all is well" if all(f.ok for f in findings) else "see the last column", style="bold")
    return 0 if all(finding.ok for finding in findings) else 1


def examine(kafka: str | None, data_dir: Path) -> Iterator[Finding]:
    """All checks, cheap ones first."""
    yield _guarded("Java", lambda: f"{(java := find_java()).path}, version {java.version}")
    yield _guarded("Kafka broker jars", lambda: f"{len(broker_classpath())} jars")
    yield _guarded("Spark connector jars", lambda: f"{len(spark_jars())} jars")
    yield _disk(data_dir)
    state = read_state(data_dir)
    pid = running_pid(data_dir)
    yield Finding(
        "local cluster",
        True,
        f"runs on {data_dir} as process {pid}" if pid else f"none runs on {data_dir}",
    )
    bootstrap = kafka or (str(state.get("kafka")) if pid else None)
    if bootstrap:
        yield from _kafka(bootstrap)
    if pid:
        yield from _cluster(str(state["coordinator"]))


def _guarded(check: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(check, True, look())
    except KeytideError as error:
        return Finding(check, False, error.message, error.next_step)


def _disk(data_dir: Path) -> Finding:
    place = data_dir if data_dir.exists() else Path.cwd()
    free = shutil.disk_usage(place).free
    ok = free > _LOW_DISK_BYTES
    return Finding(
        "disk", ok, f"{free / 1024**3:,.1f} GiB free", "" if ok else "make room: builds pause on a full disk"
    )


def _kafka(bootstrap: str) -> Iterator[Finding]:
    admin = AdminClient({**load_settings().kafka.client(), "bootstrap.servers": bootstrap, "log_level": 0})
    try:
        metadata = admin.list_topics(timeout=5)
    except KafkaException as error:
        yield Finding(
            "Kafka",
            False,
            f"{bootstrap} does not answer: {error.args[0]}",
            "start it, or correct the address or its SASL/TLS settings",
        )
        return
    yield Finding("Kafka", True, f"{len(metadata.brokers)} broker(s) at {bootstrap}")
    broker = next(iter(metadata.brokers))
    try:
        resource = ConfigResource(ResourceType.BROKER, str(broker))
        config = admin.describe_configs([resource])[resource].result(timeout=5)
        automatic = config["auto.create.topics.enable"].value == "true"
        yield Finding(
            "automatic topics",
            not automatic,
            "on" if automatic else "off",
            "set auto.create.topics.enable=false: a late message must not bring a dropped index's topic back"
            if automatic
            else "",
        )
    except (KafkaException, KeyError) as error:
        yield Finding("automatic topics", True, f"cannot be looked up: {error}")


def _cluster(url: str) -> Iterator[Finding]:
    try:
        admin = Admin(url)
        nodes = admin.call("GET", "/v1/nodes")
        indexes = admin.call("GET", "/v1/indexes")
    except KeytideError as error:
        refused = error.status in (401, 403)
        advice = "set KEYTIDE_TOKEN" if refused else "see logs/coordinator.log in the data folder"
        yield Finding("coordinator", False, f"{url}: {error.message}", advice)
        return
    yield Finding("coordinator", True, url)
    dead = [node["id"] for node in nodes if not node.get("live", True)]
    yield Finding(
        "indexer nodes",
        not dead,
        f"{len(nodes) - len(dead)} of {len(nodes)} live",
        f"look at the logs of {', '.join(dead)}" if dead else "",
    )
    for index in indexes:
        ok = index["state"] not in ("FAILED",)
        reason = index.get("reason") or ""
        yield Finding(
            f"index {index['name']}",
            ok,
            f"{index['state']}, lag {index.get('lag_documents')}, {index.get('skipped')} skipped. {reason}",
            "" if ok else "drop it and create it again",
        )
