"""What there is to say of one index and its slices, for the verdict of health. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial

from coordinator.catalog.placement import shortage
from coordinator.core.nodes import node_subject
from coordinator.leader import Leader
from coordinator.views.jobs import verification
from coordinator.views.slices import HeardCopy, counted, filling, slice_statuses
from keytide.catalog.records import IndexRecord
from keytide.model.health import HealthStatus, Reason
from keytide.model.words import few

SHOWN = 8
"""Slices that are named; more are counted."""


def index_reasons(leader: Leader, record: IndexRecord) -> Iterator[Reason]:
    """What is not in order with an index, or worth a note."""
    catalog = leader.dictionary.catalog
    if record.replaces and not catalog.bears_name(record) and not record.replaced_by:
        yield from _new_layout(record)
    elif record.replaced_by:
        return  # it serves who reads from it already, and goes
    elif record.state == "READY":
        yield from _slices(leader, record)
        yield from _ways_back(leader, record)
        yield from _queues(leader, record)
        yield from _hot(leader, record)
        yield from _contents(leader, record)
    elif record.state in ("FAILED", "DEFERRED") and leader.builds.registry.active(record) is None:
        yield from _not_built(record)


def _new_layout(record: IndexRecord) -> Iterator[Reason]:
    if record.state == "FAILED":
        yield Reason(
            "index",
            f"index {record.name}",
            "degraded",
            f"its new layout {record.id} has FAILED, the old one still answers: {record.reason}",
            "mend what the reason says, and give the statement again",
        )


def _not_built(record: IndexRecord) -> Iterator[Reason]:
    build = f"`keytide index build {record.name}`"
    say = partial(Reason, "index", f"index {record.name}")
    if record.state == "DEFERRED":
        yield say("ok", "it is not built yet: scans of it are refused", build)
        return
    mend = "mend what the reason says"
    if record.definition.unique:
        mend += f" (`keytide index violations {record.name}` lists equal keys)"
    yield say(
        "failing",
        f"it has FAILED, scans of it are refused: {record.reason}",
        f"{mend}, then build it again with {build}; or drop it",
    )


def _slices(leader: Leader, record: IndexRecord) -> Iterator[Reason]:
    """Slices of which no copy answers, or fewer than there are to be; together when it is for the same
    reason."""
    found: defaultdict[tuple[HealthStatus, str, str], list[int]] = defaultdict(list)
    rebuilds = leader.builds.registry.rebuilds(record.id)
    crowded = dict(_crowded(leader, record))
    for number in range(len(record.placement)):
        rebuild = next((one.id for one in rebuilds if number in one.slices[record.id]), "")
        if said := _slice(leader, record, number, rebuild) or crowded.get(number):
            found[said].append(number)
    for (status, reason, step), numbers in found.items():
        plural = "s" if len(numbers) > 1 else ""
        yield Reason("slice", f"slice{plural} {few(numbers, SHOWN)} of {record.name}", status, reason, step)
    missing = sum(len(numbers) for (status, _, _), numbers in found.items() if status == "failing")
    if missing:
        yield Reason(
            "index",
            f"index {record.name}",
            "failing",
            f"{missing} of {record.slices} slices answer nothing: scans that need them fail",
            "see what is said of its slices",
        )


def _slice(
    leader: Leader, record: IndexRecord, number: int, rebuild: str
) -> tuple[HealthStatus, str, str] | None:
    """What is not in order with a slice, and what to do; None when all its copies answer.

    Args:
        rebuild: id of the build that fills it anew; "" for none.
    """
    wanted = record.definition.replicas + 1
    copies = counted(leader, record, number)
    answering = sum(_story(leader, copy) is None for copy in copies)
    if answering >= wanted:
        return None
    stories = [_story(leader, copy, others=answering > 0) for copy in copies]
    troubles = list(dict.fromkeys(story for story in stories if story is not None))
    why = " and ".join(reason for reason, _ in troubles)
    unheard = [copy.node for copy in copies if _unheard(leader, copy)]
    if not answering and unheard:
        begins = not leader.stability.nodes.by_id.keys() >= {*unheard}
        reason = f"{why}: this coordinator has just begun to lead" if begins else why
        return "degraded", reason, "wait: it is told within seconds"
    if not answering:
        step = f"wait for build {rebuild}: `keytide build show {rebuild}`" if rebuild else ""
        placed_nowhere = ("it is placed nowhere", "build the index again")
        reason, first = (why, troubles[0][1]) if troubles else placed_nowhere
        return "failing", f"{reason}; scans that need it fail", step or first
    said = f"{answering} of {wanted} copies answer{'s' if answering == 1 else ''}"
    done, step = _mended(leader, record, number, troubles)
    return "degraded", "; ".join(filter(None, (f"{said}: {why}" if why else said, done))), step


def _mended(
    leader: Leader, record: IndexRecord, number: int, troubles: list[tuple[str, str]]
) -> tuple[str, str]:
    """What is being done about copies that are missing, and what to do."""
    wanted, live = record.definition.replicas + 1, len(_open_nodes(leader))
    if nodes := sorted(one.node for one in filling(leader, record, number)):
        where = f"node{'s' if len(nodes) > 1 else ''} {', '.join(nodes)}"
        return f"another is being filled on {where}", "wait: `keytide job list` shows how far it is"
    if live < wanted:
        fewer = f"or have fewer copies: ALTER INDEX {record.name} SET (replicas={max(0, live - 1)})"
        closed = len(leader.stability.nodes.live()) - live
        return f"{shortage(live, wanted, closed)}", f"start an indexer node; {fewer}"
    if troubles:
        return "", troubles[0][1]
    return "another is to be filled", "wait: `keytide job list` shows it when it is begun"


def _open_nodes(leader: Leader) -> list[str]:
    """The live nodes that may have slices."""
    closed = leader.dictionary.catalog.closed()
    return [name for name in leader.stability.nodes.live() if name not in closed]


def _crowded(leader: Leader, record: IndexRecord) -> Iterator[tuple[int, tuple[HealthStatus, str, str]]]:
    """Slices whose copies would fail together, and need not: what is not in order, and what to do."""
    zones = leader.dictionary.catalog.zones()
    there = {zones[name] for name in _open_nodes(leader)}
    for number, names in enumerate(record.placement):
        mine = Counter(zones[name] for name in names if name in zones)
        free = sorted(there - mine.keys())
        zone = next((one for one, count in mine.items() if count > 1), "")
        if zone and free:
            said = f"{mine[zone]} of its copies are in {zone} and fail together, {free[0]} has none"
            step = "`keytide rebalance` moves one"
            if filling(leader, record, number):
                step = "wait: `keytide job list` shows how far the next copy is"
            yield number, ("degraded", said, step)


def answers(leader: Leader, record: IndexRecord, number: int) -> bool:
    """Whether some copy of a slice answers."""
    return any(_story(leader, copy) is None for copy in counted(leader, record, number))


def _ways_back(leader: Leader, record: IndexRecord) -> Iterator[Reason]:
    """Slices whose disk has no room for a way back."""
    given_up: defaultdict[str, list[int]] = defaultdict(list)
    for number, names in enumerate(record.placement):
        for name in names:
            node = leader.stability.nodes.by_id.get(name)
            status = node.slice(record.id, number) if node else None
            if status is not None and status.undo_given_up:
                given_up[name].append(number)
    for name, numbers in given_up.items():
        shown = ", ".join(map(str, numbers[:SHOWN])) + (" and more" if len(numbers) > SHOWN else "")
        yield Reason(
            "slice",
            f"slice{'s' if len(numbers) > 1 else ''} {shown} of {record.name}",
            "degraded",
            f"on node {name} the way back was given up, for its disk is nearly full: should the source lose "
            "records, this is rebuilt",
            f"make room on the disk of node {name}; the next fold leaves a way back again",
        )


def _queues(leader: Leader, record: IndexRecord) -> Iterator[Reason]:
    """Slices whose queue keeps more than it may for a copy that cannot be given up for it."""
    held_back = leader.copies.held_back
    kept: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, names in enumerate(record.placement if held_back.most else ()):
        for name in names:
            if (held := held_back.of(record, number, name)) > held_back.most:
                kept[name].append((number, held))
    for name, found in kept.items():
        shown = few((number for number, _ in found), SHOWN)
        size = sum(held for _, held in found) / 1e6
        yield Reason(
            "slice",
            f"slice{'s' if len(found) > 1 else ''} {shown} of {record.name}",
            "degraded",
            f"{size:,.0f} MB are kept in Kafka for the copy on node {name}, more than may be (setting "
            "coordinator.queue_max_bytes), and no copy that holds what is published is so much farther on",
            f"see what keeps node {name} from reading on (its log, its disk; whether snapshots are fresh); "
            "until then Kafka needs the room",
        )


def _hot(leader: Leader, record: IndexRecord) -> Iterator[Reason]:
    """Slices that get much more than the others, or hold much more: all answer, so it is a note."""
    step = f"`keytide index load {record.name}` shows what is written to it, and what helps"
    if record.definition.splits_itself and (does := leader.auto_splits.waiting.get(record.id)):
        step += f"; auto_split: {does}"
    for one in leader.loads.hot(record):
        yield Reason(
            "slice",
            f"slice {one.slice} of {record.name}",
            "ok",
            f"it is hot: {one.words}",
            step,
        )


def _story(leader: Leader, copy: HeardCopy, *, others: bool = False) -> tuple[str, str] | None:
    """Why a copy answers nothing and what to do; None when it does.

    Args:
        others: other copies of its slice answer.
    """
    failure_detector, status, name = leader.stability.failure_detector, copy.status, copy.node
    if failure_detector.deaf and status is not None and status.state == "LIVE":
        return None  # as it was last heard: now nobody can be
    if _unheard(leader, copy):
        begun = name in leader.stability.nodes.by_id
        what = "has begun again, and has not said yet what it has" if begun else "was not heard yet"
        return f"node {name} {what}", "wait: it is told within seconds"
    if not copy.live or failure_detector.suspected(node_subject(name)):
        away = "; a copy whose node stays away is replaced by one on another node" if others else ""
        return f"node {name} is silent", f"see what is said of node {name}{away}"
    if status is None:
        return f"node {name} does not have it", f"see the log of node {name}"
    if copy.serves:
        return None
    if status.state == "LOST":
        anew = "it is filled again from another copy" if others else "a rebuild begins by itself"
        step = f"wait: {anew}; look at the node's disk if it was damaged"
        return f"its data on node {name} is lost: {status.reason}", step
    if status.state == "STOPPED":
        step = "mend what the reason says; it tries again every 30 s"
        return f"it has stopped on node {name}: {status.reason}", step
    return f"it catches up on node {name} and has no snapshot yet", "wait"


def _unheard(leader: Leader, copy: HeardCopy) -> bool:
    """Whether what the node of a copy has is not known, and too little time has passed to hold that against
    it: a coordinator that begins to lead has heard nobody."""
    stability = leader.stability
    known = stability.nodes.by_id.get(copy.node)
    silent = stability.failure_detector.suspected(node_subject(copy.node))
    return (known is None or not known.told) and not silent


def _contents(leader: Leader, record: IndexRecord) -> Iterator[Reason]:
    """What its data say."""
    say = partial(Reason, "index", f"index {record.name}")
    known = [status for status in slice_statuses(leader, record) if status is not None]
    if foreign := sum(status.foreign_partition_ids for status in known):
        yield say(
            "degraded",
            f"{foreign:,} documents were met in two source partitions: which version is the newest is not "
            "known",
            "let all producers use one partitioner (librdkafka: partitioner=murmur2_random, as in Java)",
        )
    checked = verification(leader, record)
    if checked is not None and checked["clean"] is False:
        yield say(
            "degraded",
            f"its last verification ({checked['job']}) has found differences: {checked['counts']}",
            f"`keytide index repair {record.name}`",
        )
    if violations := sum(status.violations for status in known):
        yield say(
            "ok",
            f"it is UNIQUE, and {violations:,} keys belong to several documents",
            f"`keytide index violations {record.name}` lists them",
        )
    if skipped := sum(status.skipped for status in known):
        yield say(
            "ok",
            f"{skipped:,} versions could not be indexed",
            f"`keytide index skipped {record.name}` lists them with reasons",
        )
