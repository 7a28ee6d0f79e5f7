"""Whether the source still holds what an index was built from: what a new layout is built from, too. Pure.

Of a topic with `cleanup.policy=delete` records go when they are old, and the entries of an index stay. A new
layout would be without them, and nothing would tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from keytide.catalog.catalog import Catalog
from keytide.catalog.records import IndexRecord
from keytide.model.words import few

NAMED: Final = 3
"""Partitions that are named."""


def lost(catalog: Catalog, old: IndexRecord, earliest: Mapping[int, int], topic_id: str) -> str:
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


def lost_since(catalog: Catalog, old: IndexRecord, new: IndexRecord) -> str:
    """The same of a layout that was built, by where its build could begin to read."""
    build, before = catalog.build(new.build or ""), catalog.build(old.build or "")
    if build is None:
        return ""
    if before is not None and before.origin is not None and build.origin != before.origin:
        return f"index {old.name} began with a table, and its new layout did not: it would lack its rows"
    return lost(catalog, old, build.earliest.offsets(), build.earliest.topic_id)
