"""A sample of a spatial index's geometries, as its nodes give it (`keytide.wire.index_lists`). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coordinator.views.loads import by_node
from keytide.catalog.records import IndexRecord
from keytide.errors import CallerError
from keytide.wire.index_lists import ListAsk, ListPage


def asks(index: IndexRecord, limit: int, nodes: Sequence[str]) -> list[tuple[str, ListAsk]]:
    """Whom to ask for what: (node, question). Each slice gives the same number.

    Args:
        nodes: of each slice the one to ask.

    Raises:
        CallerError: it has no places.
    """
    if not index.definition.structure_type.has_places:
        raise CallerError(
            f"index {index.name} is USING {index.definition.using}, and has no map",
            problem_type="index-not-spatial",
            status=422,
            next_step="ask for that of an index USING spatial",
        )
    return [
        (node, ListAsk("map", index.id, slices, -(-limit * len(slices) // len(nodes))))
        for node, slices in by_node(range(len(nodes)), nodes)
    ]


def map_answer(index: IndexRecord, pages: Sequence[ListPage], limit: int) -> dict[str, Any]:
    """What is shown: each box once."""
    found = list(dict.fromkeys(box for page in pages for box in page.boxes))[:limit]
    return {"index": index.name, "srid": index.definition.system, "boxes": found}
