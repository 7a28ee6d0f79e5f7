"""What is shown of the load of an index's slices: rates, those that are hot, values, advice. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from coordinator.core.slice_loads import Hot
from coordinator.leader import Leader
from coordinator.statements.advice import advice
from keytide.catalog.partitioning import readable_splits
from keytide.catalog.records import IndexRecord
from keytide.errors import CallerError
from keytide.wire.index_lists import ListAsk, WrittenSlice

Document = dict[str, Any]

ASKED: Final = 16
"""Slices whose nodes are asked for values at once."""


class NoSuchSliceError(CallerError):
    """An index does not have a slice of that number."""

    problem_type = "no-such-slice"
    status = 404


def hot(leader: Leader, index: IndexRecord) -> list[Document]:
    """The slices of an index that get much more than the others, or hold much more."""
    return [_hot(one) for one in leader.loads.hot(index)]


def rates(leader: Leader, index: IndexRecord) -> list[Document]:
    """Of each slice, nulls where they are not known (yet)."""
    return [
        {
            "slice": number,
            "writes_per_s": _rounded(load.writes),
            "reads_per_s": _rounded(load.reads),
            "entries": load.entries,
        }
        for number, load in enumerate(leader.loads.of(index))
    ]


def slices_to_ask(leader: Leader, index: IndexRecord, only: int | None) -> list[int]:
    """The slices whose values are shown: the one that is asked for, else those that are hot, else the one
    that is written to most.

    Raises:
        NoSuchSliceError: the index does not have it.
    """
    if only is not None:
        if only >= len(index.placement):
            raise NoSuchSliceError(
                f"index {index.name} has no slice {only}",
                next_step=f"its slices are 0 to {len(index.placement) - 1}"
                if index.placement
                else "it has none before it is built",
            )
        return [only]
    if told := sorted({one.slice for one in leader.loads.hot(index)}):
        return told[:ASKED]
    writes = [(one.writes, -number) for number, one in enumerate(leader.loads.of(index)) if one.writes]
    return [-max(writes)[1]] if writes else []


def asks(index: IndexRecord, slices: Sequence[int], nodes: Sequence[str]) -> list[tuple[str, ListAsk]]:
    """Whom to ask for what: (node, question).

    Args:
        nodes: of each slice of the index the one to ask.
    """
    return [(node, ListAsk("load", index.id, numbers, 0)) for node, numbers in by_node(slices, nodes)]


def by_node(slices: Iterable[int], nodes: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Some slices by the node that is asked for them; `nodes`: of each slice of the index the one to ask."""
    found: dict[str, list[int]] = {}
    for number in slices:
        found.setdefault(nodes[number], []).append(number)
    return sorted(found.items())


def load(leader: Leader, index: IndexRecord, written: Sequence[WrittenSlice]) -> Document:
    """The load of an index.

    Args:
        written: what nodes have told of some slices.
    """
    told = {one.slice: one for one in written}
    return {
        "index": index.name,
        "slices": rates(leader, index),
        "hot": [
            {**_hot(one), **advice(index, one, told.get(one.slice))._asdict()}
            for one in leader.loads.hot(index)
        ],
        "values": [
            {"slice": one.slice, **_value(value.value, value.least, value.most, one.total)}
            for one in sorted(written, key=lambda one: one.slice)
            for value in (one.heavy if one.total > 0 else ())
        ],
        "without_values": sorted(one.slice for one in written if not one.known),
    }


def _hot(one: Hot) -> Document:
    return {
        "slice": one.slice,
        "measure": one.measure,
        "value": _rounded(one.value),
        "others": _rounded(one.others),
        "reason": one.words,
    }


def _value(encoded: bytes, least: float, most: float, total: float) -> Document:
    """Percent of what is written to its slice."""
    return {
        "value": readable_splits([encoded])[0],
        "percent": round(100 * least / total, 1),
        "percent_most": round(min(100.0, 100 * most / total), 1),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
