"""`keytide doctor`: looks at what a cluster needs and says, for each thing that is wrong, what to do.

Of a cluster that runs it says what its coordinator says (`GET /v1/health`), as the page and `keytide status`
do. Beside that it looks at what only this machine can tell: Java, jars, disk, clocks, settings of topics.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._metadata import ClusterMetadata
from confluent_kafka.admin._resource import ResourceType

from deploy.jars import jars_of
from deploy.java import find_java
from keytide.cli.admin import LEADS, NO_ANSWER, Admin, tls_authority
from keytide.cli.data_folder import read_state, running_pid
from keytide.cli.options import DEFAULT_DATA_DIR, give_up_s
from keytide.cli.output import out, print_json, table
from keytide.errors import KeytideError
from keytide.http.tls import trusted
from keytide.kafka.clients import AdminClient
from keytide.model.health import Verdict
from keytide.settings.settings import load_settings

_LOW_DISK_BYTES = 2 * 1024**3
_COMPACTION_LAG_MS = 60_000
"""A projector that is started again, or taken over from, is back well within this."""
_TOMBSTONES_MS = 3_600_000
_CLOCK_S = 3.0
"""The HTTP date has whole seconds."""


CLUSTER = "health of the cluster"
"""The finding that is the whole verdict; all others are of its parts, or of this machine and its Kafka."""


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
        out.print(last_word(findings), style="bold")
    return 0 if all(finding.ok for finding in findings) else 1


def last_word(findings: list[Finding]) -> str:
    """One line: of the cluster what its verdict says, of all that is looked at beside it whether it is in
    order."""
    cluster = next((one for one in findings if one.check == CLUSTER), None)
    wrong = sum(not one.ok for one in findings)
    if not wrong:
        return "all is well" if cluster else "this machine is well; no cluster was looked at"
    told = "" if cluster is None else "the cluster is well; " if cluster.ok else "the cluster is not well; "
    return f"{told}{wrong} checks are not ok: see the last column"


def examine(kafka: str | None, data_dir: Path) -> Iterator[Finding]:
    """All checks, cheap ones first."""
    yield _guarded("Java", lambda: f"{(java := find_java()).path}, version {java.version}")
    yield _guarded("Kafka broker jars", lambda: f"{len(jars_of('broker'))} jars")
    yield _guarded("Spark connector jars", lambda: f"{len(jars_of('spark'))} jars")
    yield _disk(data_dir)
    state = read_state(data_dir)
    pid = running_pid(data_dir)
    yield _local(data_dir, state, pid)
    if pid:
        yield from _stopped(pid)
    bootstrap = kafka or (str(state.get("kafka")) if pid else None)
    indexes: list[dict[str, Any]] = []
    if pid:
        yield from _cluster(state.get("coordinators") or [str(state["coordinator"])], indexes)
    if bootstrap:
        keyspaces = sorted({str(index["keyspace"]) for index in indexes})
        yield from _kafka(bootstrap, keyspaces, 0 if kafka else int(state.get("brokers", 0)))


def _local(data_dir: Path, state: Mapping[str, Any], pid: int | None) -> Finding:
    """Whether the folder's cluster runs. Nothing but the usual folder may have none: whoever names another
    one means a cluster."""
    if pid:
        return Finding("local cluster", True, f"runs on {data_dir} as process {pid}")
    if state:
        advice = f"start it: keytide up --data-dir {data_dir}"
        return Finding("local cluster", False, f"the one in {data_dir} does not run", advice)
    return Finding(
        "local cluster",
        data_dir == DEFAULT_DATA_DIR,
        f"there is none in {data_dir}",
        "correct --data-dir, or make one: keytide up",
    )


def _stopped(pid: int) -> Iterator[Finding]:
    """Processes of the local cluster that a signal has stopped: they cannot say so themselves."""
    try:
        processes = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return
    for one in processes:
        with contextlib.suppress(psutil.Error):
            if one.status() == psutil.STATUS_STOPPED:
                told = " ".join(one.cmdline()[1:4]) or one.name()
                yield Finding(
                    f"process {one.pid}",
                    False,
                    f"it stands still, stopped by a signal: {told}",
                    f"let it go on: kill -CONT {one.pid}",
                )


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


def _ask_s() -> float:
    """How long one thing is asked of Kafka or a process, seconds."""
    return min(5.0, give_up_s())


def _kafka(bootstrap: str, keyspaces: list[str], brokers: int) -> Iterator[Finding]:
    config = {**load_settings().kafka.client(), "bootstrap.servers": bootstrap, "log_level": 0}
    with AdminClient(config) as admin:
        yield from _asked(admin, bootstrap, keyspaces, brokers)


def _asked(admin: AdminClient, bootstrap: str, keyspaces: list[str], brokers: int) -> Iterator[Finding]:
    """Of Kafka and the topics of keyspaces.

    Args:
        brokers: that are to be there; 0 when nobody knows how many.
    """
    try:
        metadata = admin.list_topics(timeout=_ask_s())
    except KafkaException as error:
        yield Finding(
            "Kafka",
            False,
            f"{bootstrap} does not answer: {error.args[0]}",
            "start it, or correct the address or its SASL/TLS settings",
        )
        return
    yield from kafka_findings(bootstrap, metadata, brokers)
    broker = next(iter(metadata.brokers))
    try:
        resource = ConfigResource(ResourceType.BROKER, str(broker))
        config = admin.describe_configs([resource])[resource].result(timeout=_ask_s())
        automatic = config["auto.create.topics.enable"].value == "true"
        yield Finding(
            "automatic topics",
            not automatic,
            "on" if automatic else "off",
            "set auto.create.topics.enable=false: a late message must not bring a dropped index's topic back"
            if automatic
            else "",
        )
    except (KafkaException, KeyError, TimeoutError) as error:
        yield Finding("automatic topics", True, f"cannot be looked up: {error}")
    for keyspace in keyspaces:
        resource = ConfigResource(ResourceType.TOPIC, keyspace)
        try:
            topic = admin.describe_configs([resource])[resource].result(timeout=_ask_s())
            yield source_topic(keyspace, {name: str(entry.value) for name, entry in topic.items()})
        except (KafkaException, TimeoutError) as error:
            yield Finding(f"topic {keyspace}", False, f"cannot be looked up: {error}", "is it there?")


def kafka_findings(bootstrap: str, metadata: ClusterMetadata, brokers: int) -> Iterator[Finding]:
    """Whether all brokers are there, and all replicas of topics in sync.

    Args:
        brokers: as `_asked`.
    """
    found = len(metadata.brokers)
    away = found < brokers
    yield Finding(
        "Kafka",
        not away,
        f"{found} of {brokers} brokers at {bootstrap}" if away else f"{found} broker(s) at {bootstrap}",
        "it is started again by `keytide up`; see kafka/broker-*/logs in the data folder" if away else "",
    )
    parts = [part for topic in metadata.topics.values() for part in topic.partitions.values()]
    behind = sum(len(part.isrs) < len(part.replicas) for part in parts)
    if any(len(part.replicas) > 1 for part in parts):
        advice = "have every broker run, and wait; if it stays so, see the brokers' logs"
        yield Finding(
            "replicas",
            not behind,
            f"of {len(parts)} partitions {behind} lack a replica that is in sync",
            advice if behind else "",
        )


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


def _cluster(urls: list[str], known: list[dict[str, Any]]) -> Iterator[Finding]:
    """The leader's verdict, reason by reason, and whether the other coordinators are there; the indexes are
    added to `known`."""
    log = "see logs/coordinator*.log in the data folder"
    with Admin(urls, seconds=give_up_s()) as admin:
        try:
            verdict = admin.health()
            known += admin.call("GET", "/v1/indexes")
        except KeytideError as error:
            refused = error.status in (401, 403)
            advice = "set KEYTIDE_TOKEN" if refused else log
            yield Finding("coordinator", False, f"{', '.join(urls)}: {error.message}", advice)
            return
        all_of_them = admin.coordinators()
    leaders = [one["url"] for one in all_of_them if one["state"] == LEADS]
    url = leaders[0] if leaders else admin.url
    yield from cluster_findings(url, verdict)
    for one in all_of_them if len(urls) > 1 else ():
        well = one["state"] != NO_ANSWER
        yield Finding(f"coordinator {one['url']}", well, one["state"], "" if well else log)
    yield _clock(url)


def cluster_findings(url: str, verdict: Verdict) -> Iterator[Finding]:
    """What the verdict says, as findings: the doctor has no other opinion of a cluster.

    Args:
        verdict: of `GET /v1/health` at `url`.
    """
    yield Finding(
        CLUSTER,
        verdict.well,
        f"{verdict.status}, says the coordinator at {url}",
        "" if verdict.well else "see below",
    )
    for one in verdict.reasons:
        yield Finding(one.subject, one.status == "ok", one.reason, one.next_step)


def _clock(url: str) -> Finding:
    """This machine's clock against the coordinator's: staleness and freshness are differences of clocks."""
    try:
        verify = trusted(tls_authority(url))
        said = httpx.get(f"{url}/healthz", timeout=_ask_s(), verify=verify).headers["date"]
        apart = abs((datetime.now(UTC) - parsedate_to_datetime(said)).total_seconds())
    except (httpx.HTTPError, KeyError, ValueError) as error:
        return Finding("clocks", True, f"cannot be compared: {error}")
    ok = apart <= _CLOCK_S
    advice = "" if ok else "keep the clocks of all machines together (NTP)"
    return Finding("clocks", ok, f"{apart:.0f} s apart", advice)
