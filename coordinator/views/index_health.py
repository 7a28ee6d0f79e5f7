"""What there is to say of one index and its slices, for the verdict of health. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from coordinator.core.nodes import node_subject
from coordinator.leader import Leader
from coordinator.views import views
from coordinator.views.jobs import verification
from keytide.catalog.records import IndexRecord
from keytide.model.health import Reason

SHOWN = 8
"""Slices that are named; more are counted."""


def index_reasons(leader: Leader, record: IndexRecord) -> Iterator[Reason]:
    """What is not in order with an index, or worth a note."""
    if record.state == "READY":
        yield from _slices(leader, record)
        yield from _ways_back(leader, record)
        yield from _contents(leader, record)
    elif record.state in ("FAILED", "DEFERRED") and leader.builds.registry.active(record) is None:
        yield from _not_built(record)


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
    """Slices that answer nothing, together when it is for the same reason."""
    found: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    rebuilds = leader.builds.registry.rebuilds(record.id)
    for number in range(len(record.placement)):
        if story := _story(leader, record, number):
            rebuild = next((one.id for one in rebuilds if number in one.slices[record.id]), "")
            step = f"wait for build {rebuild}: `keytide build show {rebuild}`" if rebuild else story[1]
            found[story[0], step].append(number)
    for (reason, step), numbers in found.items():
        shown = ", ".join(map(str, numbers[:SHOWN]))
        more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
        plural = "s" if len(numbers) > 1 else ""
        subject = f"slice{plural} {shown}{more} of {record.name}"
        yield Reason("slice", subject, "failing", f"{reason}; scans that need it fail", step)
    if found:
        missing = sum(map(len, found.values()))
        yield Reason(
            "index",
            f"index {record.name}",
            "failing",
            f"{missing} of {record.slices} slices answer nothing: scans that need them fail",
            "see what is said of its slices",
        )


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


def _story(leader: Leader, record: IndexRecord, number: int) -> tuple[str, str] | None:
    """Why a slice answers nothing and what to do; None when some replica of it does answer."""
    stories: list[tuple[str, str]] = []
    failure_detector = leader.stability.failure_detector
    for name in record.placement[number]:
        node = leader.stability.nodes.by_id.get(name)
        status = node.slice(record.id, number) if node else None
        if failure_detector.deaf and status is not None and status.state == "LIVE":
            return None  # as it was last heard: now nobody can be
        if node is None or not node.live or failure_detector.suspected(node_subject(name)):
            stories.append((f"node {name} is silent", f"see what is said of node {name}"))
        elif status is None:
            stories.append((f"node {name} does not have it", f"see the log of node {name}"))
        elif status.state == "LIVE" and status.number >= 0:
            return None
        elif status.state == "LOST":
            step = "wait: a rebuild begins by itself; look at the node's disk if it was damaged"
            stories.append((f"its data on node {name} is lost: {status.reason}", step))
        elif status.state == "STOPPED":
            step = "mend what the reason says; it tries again every 30 s"
            stories.append((f"it has stopped on node {name}: {status.reason}", step))
        else:
            stories.append((f"it catches up on node {name} and has no snapshot yet", "wait"))
    return stories[0] if stories else ("it is placed nowhere", "build the index again")


def _contents(leader: Leader, record: IndexRecord) -> Iterator[Reason]:
    """What its data say."""
    say = partial(Reason, "index", f"index {record.name}")
    known = [status for status in views.slice_statuses(leader, record) if status is not None]
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
