"""What a new layout is built from: the entries of the one that it replaces, or the source. Pure (R44).

Where what decides the entries is the same, and an entry holds what tells its slice, in the old layout as in
the new one, the build reads the slices of the old layout at one snapshot. That is much less than the source,
and may be all that is left of records that the source has forgotten. What is written meanwhile comes by the
new layout's own queues. Where a document was met in two source partitions, its entries do not say all that is
known of it: then the source is read.

Of a topic with `cleanup.policy=delete` records go when they are old, and the entries of an index stay. A new
layout that reads the source would be without them, and nothing would tell: so that is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from coordinator.core.nodes import HeardNodes
from keytide.catalog.catalog import Catalog
from keytide.catalog.records import IndexRecord
from keytide.definition.index import IndexDefinition
from keytide.model.words import few

NAMED: Final = 3
"""Slices, or partitions, that are named."""


class Seed(NamedTuple):
    """What a build of a new layout begins with.

    Attributes:
        layout: id of the one whose slices it reads; "" for the source.
        waits: what is to be known before that can be said, in words; "" when it can.
        why: why it is the source.
    """

    layout: str = ""
    waits: str = ""
    why: str = ""


def seed_of(catalog: Catalog, nodes: HeardNodes, index: IndexRecord) -> Seed:
    """What the build of an index begins with."""
    old = catalog.index(index.replaces) if index.replaces else None
    if old is None:
        return Seed(why="it replaces nothing")
    if why := other_entries(index.definition, old.definition) or gone(catalog, nodes, old.id):
        return Seed(why=why)
    silent: list[int] = []
    for number in range(len(old.placement)):
        said = nodes.said(old.id, number)
        if any(status.foreign_partition_ids for status in said):
            return Seed(why=f"documents of slice {number} of {old.id} were met in two source partitions")
        if not said:
            silent.append(number)
    if not silent:
        return Seed(old.id)
    of = f"slice{'s' if len(silent) > 1 else ''} {few(silent, NAMED)} of {old.id}"
    if nodes.unheard(name for number in silent for name in old.placement[number]):
        return Seed(waits=f"what nodes say of {of}")
    return Seed(why=f"no node says anything of {of}")


def other_entries(new: IndexDefinition, old: IndexDefinition) -> str:
    """Why the entries of an index are not made of those of another one, in words; "" when they are."""
    alike = replace(
        old,
        name=new.name,
        statement=new.statement,
        partition=new.partition,
        partition_kind=new.partition_kind,
        given_splits=new.given_splits,
        slices=new.slices,
        partition_slices=new.partition_slices,
        replicas=new.replicas,
        defer_build=new.defer_build,
        auto_split=new.auto_split,
    )
    if new != alike:
        return "the definition says something else of entries"
    if new.samples_splits:
        return "where its slices part is found from the source"
    if not new.entries_say_slice:
        return "entries do not hold what the index is partitioned by"
    if not old.entries_say_slice:
        return "documents were skipped whose slice could not be told"
    return ""


def gone(catalog: Catalog, nodes: HeardNodes, seed: str) -> str:
    """Why nobody can begin with a layout any more, in words; "" while somebody can. (Copies that are silent
    may come back.)"""
    index = catalog.index(seed)
    if index is None or index.state != "READY" or not index.placement:
        return f"layout {seed} is {index.state if index else 'gone'}"
    lost = [
        number
        for number, names in enumerate(index.placement)
        if (seed, number) in nodes.lost or all(map(nodes.gone, names))
    ]
    return f"no copy is left of slices {few(lost, NAMED)} of layout {seed}" if lost else ""


def forgotten(catalog: Catalog, old: IndexRecord, earliest: Mapping[int, int], topic_id: str) -> str:
    """Why an index cannot be made anew from its source, in words; "" when it can.

    Args:
        earliest: first offsets that the source holds now.
        topic_id: of the source now.
    """
    build = catalog.build(old.build or "")
    if build is None or build.earliest.topic_id != topic_id:
        return ""
    began = build.earliest.offsets()
    gone = sorted(p for p, offset in earliest.items() if offset > began.get(p, offset))
    if not gone:
        return ""
    return (
        f"the source no longer holds all that index {old.name} was built from (the first records of "
        f"partitions {few(gone, NAMED)} are gone): a new layout would lack their entries"
    )


def forgotten_since(catalog: Catalog, old: IndexRecord, new: IndexRecord) -> str:
    """The same of a layout that was built, by where its build could begin to read."""
    build, before = catalog.build(new.build or ""), catalog.build(old.build or "")
    if build is None or build.seed:
        return ""
    if before is not None and before.origin is not None and build.origin != before.origin:
        return f"index {old.name} began with a table, and its new layout did not: it would lack its rows"
    return forgotten(catalog, old, build.earliest.offsets(), build.earliest.topic_id)
