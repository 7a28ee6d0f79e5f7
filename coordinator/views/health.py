"""The cluster's health: what the leader knows in, one verdict out. Pure.

Page, `keytide status`, `keytide doctor`, `/readyz` and metrics all show this verdict, so they cannot
contradict each other. What is said of a subject that others depend on is said of them too: while a node is
silent, so are its slices, and scans of their index fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from coordinator.builds.registry import FINAL
from coordinator.copies.choosing import TURN
from coordinator.copies.grace import READERS
from coordinator.core.nodes import node_subject
from coordinator.core.speakers import told
from coordinator.jobs.registry import DRAIN
from coordinator.leader import Leader
from coordinator.stability.progress import partition_subject
from coordinator.stability.stream import StabilityStream
from coordinator.views import views
from coordinator.views.copies import drain_state
from coordinator.views.index_health import answers, index_reasons
from keytide.model.health import Reason, Verdict, verdict
from keytide.model.protocol import CHANGES, NEEDED, SPOKEN
from keytide.model.roles import Role
from keytide.model.words import few

DRIVER_SILENT_MS = 10_000
"""A driver reports twice a second."""
DRIVER_DEATHS = 2
"""One death of a driver is everyday; more without progress are told."""
_UPGRADE = "upgrade it: start it again with the release of the others"


def of(leader: Leader, now: int) -> Verdict:
    """The verdict at one moment; `now` in milliseconds since the epoch."""
    return verdict(_reasons(leader, now))


def _reasons(leader: Leader, now: int) -> Iterator[Reason]:
    yield from _kafka(leader)
    yield from _cluster(leader)
    for name, stream in sorted(leader.stability.streams.items()):
        if stream.emitting:
            yield from _keyspace(leader, name, stream, now)
            yield from _projectors(leader, name, stream)
    for record in leader.dictionary.catalog.indexes():
        yield from index_reasons(leader, record)
    yield from _nodes(leader)
    yield from _builds(leader)
    yield from _jobs(leader)


def _kafka(leader: Leader) -> Iterator[Reason]:
    failure_detector = leader.stability.failure_detector
    if failure_detector.kafka_suspected:
        silence = _seconds(failure_detector.kafka_silence)
        yield Reason(
            "kafka",
            "Kafka",
            "failing",
            f"it has confirmed nothing of what the coordinator sends for {silence}: no timestamp is issued, "
            "and nobody is heard",
            "see whether its brokers run and the coordinator reaches them (its log, `keytide doctor`)",
        )
    for keyspace, error in sorted(leader.builds.pausing.away.items()):
        if keyspace in leader.stability.streams and not failure_detector.kafka_suspected:
            yield Reason(
                "kafka",
                f"topic {keyspace}",
                "degraded",
                f"it cannot be looked at: {error}",
                "see whether every partition of it has a leader",
            )

    for disk in leader.queue_sizes.full:
        yield Reason(
            "kafka",
            f"broker {disk.broker}",
            "degraded",
            f"the disk of {disk.folder} is nearly full, {_mib(disk.free)} of {_mib(disk.total)} are free: "
            "builds pause, and no copy is begun that needs a queue on it (setting "
            "coordinator.kafka_disk_free_bytes)",
            "make room there: a broker whose only disk is full ends itself",
        )
    if leader.copies.held_back.most and leader.queue_sizes.untold:
        yield Reason(
            "kafka",
            "Kafka",
            "degraded",
            "it does not say how large queues are: coordinator.queue_max_bytes is not kept",
            "see why in the coordinator's log; its user has to be allowed to DESCRIBE the cluster",
        )


def _cluster(leader: Leader) -> Iterator[Reason]:
    say = partial(Reason, "cluster", leader.dictionary.topics.cluster)
    if not leader.dictionary.catalog.nodes():
        yield say("degraded", "there are no indexer nodes", "start one: `python -m indexer`")
    yield from _protocol(leader)
    for role, what in _missing_roles(leader):
        yield say(
            "degraded",
            f"no indexer node with the role {role} is live: {what}",
            "start one with it (setting indexer.roles), or give it to one that runs, and start that again",
        )
    if leader.foreign:
        yield say(
            "ok",
            f"topics are named like its queues, and it knows nothing of them: {few(leader.foreign, 5)}",
            "if they are no other cluster's, delete them",
        )
    room, needed = leader.builds.pausing.room, leader.build_limits.driver_disk_bytes
    if room is not None and room.free < needed:
        yield say(
            "degraded",
            f"the disk of {room.folder} is nearly full, {_mib(room.free)} are free: builds pause",
            "make room there",
        )


def _protocol(leader: Leader) -> Iterator[Reason]:
    """Who speaks an earlier version of the protocol than the others. (Of the nodes that speak none that is
    in use, each is told by itself.)"""
    catalog, cluster = leader.dictionary.catalog, leader.dictionary.topics.cluster
    for one in leader.speakers.others(catalog):
        if one.protocol < catalog.protocol:
            yield Reason("projector", one.name, "degraded", _speaks(one.protocol, catalog.protocol), _UPGRADE)
    say = partial(Reason, "cluster", cluster, "ok")
    behind = leader.speakers.behind(catalog, SPOKEN)
    if refused := [one for one in behind if one.protocol < NEEDED]:
        yield say(
            f"not everybody speaks version {NEEDED} of the protocol: {told(refused)}; what needs it is "
            "refused",
            "upgrade them, and the gateways, which nobody hears",
        )
    nodes = {*leader.speakers.nodes(catalog)}
    if whole := [one for one in behind if one in nodes and one.protocol < CHANGES]:
        yield say(
            f"some nodes speak less than version {CHANGES} of the protocol, and say all in each heartbeat: "
            f"{told(whole)}",
            "upgrade them",
        )


def _speaks(version: int, used: int) -> str:
    return f"it speaks version {version} of the protocol, and version {used} is in use"


def _missing_roles(leader: Leader) -> Iterator[tuple[Role, str]]:
    """The roles that nobody has of the nodes that are live or may be, and what that means; none where there
    is no such node at all."""
    nodes = leader.stability.nodes
    there = set(nodes.live())
    there.update(nodes.unheard(one.id for one in leader.dictionary.catalog.nodes()))
    known = [one for one in leader.dictionary.catalog.nodes() if one.id in there]
    if known and not any(one.has("index") for one in known):
        yield "index", "slices can be placed nowhere"
    if known and not any(one.has("scan") for one in known):
        yield "scan", "only gateways answer scans"


def _keyspace(leader: Leader, name: str, stream: StabilityStream, now: int) -> Iterator[Reason]:
    say = partial(Reason, "keyspace", f"keyspace {name}")
    source = leader.sources.get(name)
    if source is not None and not source.exists:
        yield say(
            "failing",
            f"there is no topic {name} any more: its indexes stay as they are",
            "make the topic again, or drop its indexes",
        )
    if doubt := leader.rollbacks.examining(name):
        yield say(
            "degraded",
            f"its history is being examined, snapshots wait: {doubt}",
            "wait; if it stays so: is the topic there, and does every partition have a leader?",
        )
    if stream.floor is not None:
        yield say(
            "degraded",
            "everything was stopped for so long that its last snapshot is not known; the next one comes when "
            "projectors have read to where that may have been",
            "wait while projectors read; else look at their logs",
        )
    for one in source.open_transactions if source is not None else ():
        yield say(
            "degraded",
            f"acknowledged records of topic {name} wait, and are in no snapshot: {one.in_words(now)}",
            one.remedy,
        )
    stale = leader.staleness_ms(stream, now)
    if stale is not None and stale > leader.stability.limits.stale_limit_ms:
        behind = views.projector_lag(leader, name, stream)
        held = "; timestamps wait until projectors have caught up" if stream.hold else ""
        yield say(
            "degraded",
            f"snapshots are {_seconds(stale)} behind the source, {behind:,} documents are to come{held}",
            "wait while the number falls; else look at the projectors' logs, or start more of them",
        )
    for node, index, number in sorted(stream.lagging):
        record = leader.dictionary.catalog.index(index)
        yield Reason(
            "slice",
            f"slice {number} of {record.name if record else index}",
            "degraded",
            f"it lags behind on node {node}; snapshots do not wait for it",
            f"see what keeps node {node} busy: its disk, its CPU, its log",
        )


def _projectors(leader: Leader, name: str, stream: StabilityStream) -> Iterator[Reason]:
    failure_detector, partitions = (
        leader.stability.failure_detector,
        range(stream.progress.keyspace.partitions),
    )
    silent = [one for one in partitions if failure_detector.suspected(partition_subject(name, one))]
    if not silent:
        return
    everyone = len(silent) == len(partitions)
    which = "its partitions" if everyone else f"partitions {few(silent, 8)}"
    yield Reason(
        "projector",
        f"projectors of {name}",
        "failing" if everyone else "degraded",
        f"no projector reports {which}: what is written there comes into no snapshot",
        "start a projector, or look at the log of the one that stands still",
    )


def _nodes(leader: Leader) -> Iterator[Reason]:
    failure_detector = leader.stability.failure_detector
    held, alone = set[str](), set[str]()
    for index in leader.dictionary.catalog.indexes():
        for number, names in enumerate(index.placement if index.state == "READY" else ()):
            held.update(names)
            if not answers(leader, index, number):
                alone.update(names)
    catalog = leader.dictionary.catalog
    placed = {name for index in catalog.indexes() for names in index.placement for name in names}
    running = any(one.state == "RUNNING" for one in catalog.rebalances())
    for record in catalog.nodes():
        name, known = record.id, leader.stability.nodes.by_id.get(record.id)
        say = partial(Reason, "node", f"node {name}")
        drain = drain_state(leader, record)
        if drain == "drained" and (known is None or not known.live):
            continue  # (it may go, or has gone)
        if drain == "draining" and (waits := leader.copies.moves.waiting.get(name)):
            yield say(
                "ok" if waits == TURN or waits.startswith(READERS) else "degraded",
                f"it is being drained, and copies are still on it: the next waits for {waits}",
                f"see `keytide job show {DRAIN}{name}`; `keytide node undrain {name}` gives it up",
            )
        if not drain and not record.has("index") and name in placed and not running:
            yield say(
                "degraded",
                f"it has not the role index, and {_copies(leader.copies.moves.copies_on(name))} on it",
                f"`keytide rebalance` moves them to others, or `keytide node drain {name}`; or give it the "
                "role again (setting indexer.roles)",
            )
        if record.protocol < catalog.protocol:
            yield say(
                "failing" if name in alone else "degraded",
                f"{_speaks(record.protocol, catalog.protocol)}: it is passed over as if it were silent",
                _UPGRADE,
            )
        elif failure_detector.suspected(node_subject(name)) and not failure_detector.deaf:
            silence = _seconds(failure_detector.silence(node_subject(name)))
            holds = name in held
            away = "has not been heard in this term" if known is None else f"has said nothing for {silence}"
            also = (
                "and with it the slices that it holds"
                if name in alone
                else "other copies answer for its slices"
            )
            yield say(
                "failing" if name in alone else "ok" if known is None and not holds else "degraded",
                f"it {away}: it is gone, stands still or is cut off"
                + (f", {also}" if holds else "; it holds no slice of an index"),
                "start it again, or see in its log why it stands still",
            )
        free = known.heartbeat.disk_free if known else None
        if free is not None and free < leader.build_limits.node_disk_bytes:
            yield say(
                "degraded",
                f"its disk is nearly full: {_mib(free)} are free",
                "make room there, or drop what is not needed",
            )


def _builds(leader: Leader) -> Iterator[Reason]:
    registry = leader.builds.registry
    for record in registry.all():
        if record.state in FINAL or not registry.indexes(record):
            continue  # (how one has failed is said of its index, while that is not built again)
        run, names = registry.run(record.id), ", ".join(registry.names(record))
        say = partial(Reason, "build", f"build {record.id} of {names}")
        if record.paused_by == "operator":
            resume = f"`keytide build resume {record.id}`"
            yield say("ok", f"it pauses on request: {record.paused}", resume)
        elif record.paused:
            step = "put that right; it goes on by itself when it can"
            yield say("degraded", f"it pauses: {record.paused}", step)
        elif record.state == "BACKFILL" and (story := run.failing or _struggles(run.restarts, run.silent_ms)):
            step = f"see the log of its driver in the coordinator's data folder, builds/{record.id}"
            yield say("degraded", story, step)


def _struggles(restarts: int, silent_ms: int) -> str:
    if restarts >= DRIVER_DEATHS:
        return f"its driver was started again {restarts} times since it last got on"
    if silent_ms > DRIVER_SILENT_MS:
        return f"its driver has said nothing for {_seconds(silent_ms)}"
    return ""


def _jobs(leader: Leader) -> Iterator[Reason]:
    """The last job of each kind of an index that there is still."""
    last = {(job.kind, tuple(job.indexes)): job for job in leader.jobs.all() if not job.build}
    for job in last.values():
        known = [index for index in map(leader.dictionary.catalog.index, job.indexes) if index is not None]
        if job.state == "FAILED" and known:
            yield Reason(
                "job",
                f"{job.kind} {job.id} of {', '.join(index.name for index in known)}",
                "degraded",
                f"it has failed: {job.error}",
                f"put that right, then start it again: `keytide index {job.kind} {known[0].name}`",
            )


def _copies(count: int) -> str:
    return "1 copy of a slice is" if count == 1 else f"{count:,} copies of slices are"


def _seconds(ms: int) -> str:
    return f"{ms / 1000:,.1f} s"


def _mib(count: int) -> str:
    return f"{count / (1 << 20):,.0f} MiB"
