"""The nodes and copies that what goes on waits for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from coordinator.builds.copies import away
from coordinator.core.nodes import node_subject
from coordinator.leader import Leader
from coordinator.stability.publishing import usable_copies
from keytide.catalog.records import BuildRecord, IndexRecord
from keytide.model.timestamp import Timestamp
from keytide.model.words import few

NAMED: Final = 3
"""Copies that are named; more are counted."""


def waits_for(leader: Leader, words: str, nodes: Iterable[str]) -> str:
    """What a build, a job or a copy waits for.

    Args:
        words: in its own words, "" when it knows of nothing.
        nodes: whose slices it needs now.
    """
    return "; ".join(filter(None, (words, *(_word(leader, name) for name in sorted(set(nodes))))))


def _word(leader: Leader, name: str) -> str:
    """Of a node that is not live; "" of one that is."""
    heard = leader.stability.nodes.by_id.get(name)
    if heard is not None and heard.live:
        return ""
    silence = leader.stability.failure_detector.silence(node_subject(name))
    since = f"has said nothing for {silence / 1000:,.0f} s" if heard is not None else "was not heard yet"
    return f"node {name}, which {since} (keytide node list)"


def alone(leader: Leader, index: IndexRecord, slices: Iterable[int] | None = None) -> Iterator[str]:
    """The nodes of slices (all of an index, by default) of which no node is live: nobody else can be asked
    in their place."""
    live = set(leader.stability.nodes.live())
    for number, nodes in enumerate(index.placement):
        if (slices is None or number in slices) and live.isdisjoint(nodes):
            yield from nodes


def of_build(leader: Leader, record: BuildRecord, now: int) -> str:
    """What a build waits for; once everything is read, the copies too that have to get on, and the nodes of
    those that say nothing."""
    registry = leader.builds.registry
    run, indexes = registry.run(record.id), registry.indexes(record)
    if record.state != "CATCHUP":
        return run.waiting_for
    if record.rebuild or record.phase == "verifying":
        nodes = [node for one in indexes for node in alone(leader, one, record.slices_of(one))]
        return waits_for(leader, run.waiting_for, nodes)
    silent, behind = list[str](), list[str]()
    for index in indexes:
        if index.state == "BUILDING":
            silent += [node for _, node in away(leader.builds.nodes, index, run.common_at or now)[0]]
            behind += _behind(leader, record, index)
    words = few(behind, NAMED)
    return waits_for(leader, ": ".join(filter(None, (run.waiting_for, words))), silent)


def _behind(leader: Leader, record: BuildRecord, index: IndexRecord) -> Iterator[str]:
    """The copies on live nodes that have not what the build was to bring."""
    nodes = leader.stability.nodes
    goal = record.load_timestamp.merge_max(record.final_timestamp or Timestamp())
    incarnation = leader.builds.registry.incarnation(index.keyspace)
    for number, usable in enumerate(usable_copies(nodes, index)):
        for name in usable:
            node = nodes.by_id.get(name)
            if node is None or not node.live:
                continue
            status = node.slice(index.id, number)
            if status is None:
                what = "not begun"
            elif (
                status.state == "LIVE" and status.incarnation == incarnation and status.timestamp.covers(goal)
            ):
                continue
            elif status.state in ("CATCHUP", "LIVE"):
                what = f"{status.state}, {status.timestamp.documents_to(goal):,} documents to go"
            else:
                what = ": ".join(filter(None, (status.state, status.reason)))
            yield f"slice {number} of {index.name} on node {name} ({what})"
