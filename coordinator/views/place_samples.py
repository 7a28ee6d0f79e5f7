"""A sample of a spatial index's places, as its nodes give it (`keytide.wire.index_lists`). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keytide.catalog.records import IndexRecord
from keytide.errors import CallerError
from keytide.wire.index_lists import ListAsk, ListPage


class NoPlacesError(CallerError):
    """An index that is not spatial was asked for places."""

    problem_type = "no-places"
    status = 422


def asks(index: IndexRecord, limit: int, nodes: Sequence[str]) -> list[tuple[str, ListAsk]]:
    """Whom to ask for what: (node, question). Each slice gives the same number of places.

    Args:
        nodes: of each slice the one to ask.

    Raises:
        NoPlacesError: the index has none.
    """
    if index.definition.using != "spatial":
        raise NoPlacesError(
            f"index {index.name} is USING {index.definition.using}, and has no places",
            next_step="ask for those of an index USING spatial",
        )
    by_node: dict[str, list[int]] = {}
    for number, node in enumerate(nodes):
        by_node.setdefault(node, []).append(number)
    return [
        (node, ListAsk("places", index.id, slices, -(-limit * len(slices) // len(nodes))))
        for node, slices in sorted(by_node.items())
    ]


def places(index: IndexRecord, pages: Sequence[ListPage], limit: int) -> dict[str, Any]:
    """What is shown: each place once."""
    found = list(dict.fromkeys(place for page in pages for place in page.places))[:limit]
    return {"index": index.name, "srid": index.definition.system, "places": found}
