"""`keytide doctor`: looks at what a cluster needs and says, for each thing that is wrong, what to do."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
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
_COMPACTION_LAG_MS = 60_000
"""A projector that is started again, or taken over from, is back well within this."""
_TOMBSTONES_MS = 3_600_000
_CLOCK_S = 3.0
"""The HTTP date has whole seconds."""


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
    indexes: list[dict[str, Any]] = []
    if pid:
        yield from _cluster(str(state["coordinator"]), indexes)
    if bootstrap:
        yield from _kafka(bootstrap, sorted({str(index["keyspace"]) for index in indexes}))


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


def _kafka(bootstrap: str, keyspaces: list[str]) -> Iterator[Finding]:
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
    for keyspace in keyspaces:
        resource = ConfigResource(ResourceType.TOPIC, keyspace)
        try:
            topic = admin.describe_configs([resource])[resource].result(timeout=5)
            yield source_topic(keyspace, {name: str(entry.value) for name, entry in topic.items()})
        except KafkaException as error:
            yield Finding(f"topic {keyspace}", False, f"cannot be looked up: {error}", "is it there?")


def source_topic(keyspace: str, config: Mapping[str, str]) -> Finding:
    """Whether a keyspace's topic keeps what indexes need (R26, R27, R29).

    Args:
        config: of the topic, by Kafka's names.
    """
    name, policy = f"topic {keyspace}", config.get("cleanup.policy", "delete")
    if "compact" not in policy:
        forever = config.get("retention.ms", "") == "-1" and config.get("retention.bytes", "-1") == "-1"
        kept = "keeps everything" if forever else "loses old documents by design; their entries stay"
        return Finding(name, True, f"cleanup.policy={policy}, {kept}")
    lag, tombstones = (int(config.get(key, "0")) for key in ("min.compaction.lag.ms", "delete.retention.ms"))
    found = f"cleanup.policy={policy}, min.compaction.lag.ms={lag:,}, delete.retention.ms={tombstones:,}"
    if lag < _COMPACTION_LAG_MS:
        advice = (
            f"set min.compaction.lag.ms to {_COMPACTION_LAG_MS} or more: when projectors are later, "
            "snapshots wait until what was read late is behind them"
        )
        return Finding(name, False, found, advice)
    if tombstones < _TOMBSTONES_MS:
        advice = (
            f"set delete.retention.ms to {_TOMBSTONES_MS} or more: longer builds fail, and so do "
            "indexes whose projectors were away for longer"
        )
        return Finding(name, False, found, advice)
    return Finding(name, True, found)


def _cluster(url: str, known: list[dict[str, Any]]) -> Iterator[Finding]:
    """The coordinator, nodes and indexes; the indexes are added to `known`."""
    try:
        with Admin(url) as admin:
            nodes = admin.call("GET", "/v1/nodes")
            indexes = admin.call("GET", "/v1/indexes")
            keyspaces = admin.call("GET", "/v1/stability").get("keyspaces") or {}
            topology = admin.call("GET", "/v1/topology")
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
    yield _clock(url)
    known += indexes
    for name, keyspace in keyspaces.items():
        yield history(name, keyspace)
    slices = {index["name"]: index["slices"] for index in topology.get("indexes") or ()}
    for index in indexes:
        yield state(index, slices.get(index["name"], ()))
        foreign = int(index.get("foreign_partition_ids") or 0)
        if foreign:
            yield Finding(
                f"partitioners of {index['keyspace']}",
                False,
                f"{foreign:,} documents of index {index['name']} were met in two source partitions",
                "let all producers use one partitioner (librdkafka: partitioner=murmur2_random, as in Java)",
            )


def history(name: str, keyspace: Mapping[str, Any]) -> Finding:
    """Whether a keyspace's history is whole. A rollback that is over is told, and nothing is to be done.

    Args:
        keyspace: as `GET /v1/stability` shows it.
    """
    last = keyspace.get("last_rollback") or {}
    found = f"{keyspace.get('rollbacks') or 'no'} rollbacks"
    found += f"; the last: {last.get('text') or last.get('detail')}" if last else ""
    if keyspace.get("examining"):
        return Finding(
            f"history of {name}",
            False,
            f"being examined: records may be lost. {found}",
            "wait; if it stays so, is the topic there, and does every partition have a leader?",
        )
    return Finding(f"history of {name}", True, found)


def state(index: Mapping[str, Any], slices: Iterable[Mapping[str, Any]]) -> Finding:
    """Whether an index answers all scans, or is on the way.

    Args:
        index: as `GET /v1/indexes` shows it.
        slices: of it, as `GET /v1/topology` shows them.
    """
    name, reason = index["name"], index.get("reason") or ""
    found = f"{index['state']}, lag {index.get('lag_documents')}, {index.get('skipped')} skipped. {reason}"
    if index["state"] == "FAILED":
        return Finding(f"index {name}", False, found, f"build it again: `keytide index build {name}`")
    bad = [one for one in slices if one.get("state") in ("LOST", "STOPPED")]
    found += "".join(
        f" Slice {one['slice']} on node {one['node']} is {one['state']}: {one.get('reason')}." for one in bad
    )
    if any(one["state"] == "LOST" for one in bad):
        builds = sorted({str(one["rebuild"]) for one in bad if one.get("rebuild")})
        wait = f"wait for build {', '.join(builds)}" if builds else "wait: a rebuild begins by itself"
        return Finding(f"index {name}", False, found, f"{wait}; look at the node's disk if it was damaged")
    if bad:
        return Finding(f"index {name}", False, found, "mend what the reason says; it tries again every 30 s")
    return Finding(f"index {name}", True, found)


def _clock(url: str) -> Finding:
    """This machine's clock against the coordinator's: staleness and freshness are differences of clocks."""
    try:
        said = httpx.get(f"{url}/healthz", timeout=5).headers["date"]
        apart = abs((datetime.now(UTC) - parsedate_to_datetime(said)).total_seconds())
    except (httpx.HTTPError, KeyError, ValueError) as error:
        return Finding("clocks", True, f"cannot be compared: {error}")
    ok = apart <= _CLOCK_S
    advice = "" if ok else "keep the clocks of all machines together (NTP)"
    return Finding("clocks", ok, f"{apart:.0f} s apart", advice)
