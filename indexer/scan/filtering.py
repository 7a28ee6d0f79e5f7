"""A reader's condition over entries, as a function that a slice can call per entry."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import msgspec

from indexer.scan.picking import Test
from keytide.collation import decode_key
from keytide.definition import IndexDefinition
from keytide.definition.binding import Binding, Needs
from keytide.definition.binding import Test as Condition
from keytide.definition.expression import Predicate
from keytide.entry import unpack_value
from keytide.errors import UNDECODABLE, CallerError

KEPT: Final = 64
"""Filters that a node keeps ready: pages and blocks of one read come with the same."""

_NOTHING: Final[dict[str, Any]] = {}
_decode: Final = msgspec.json.Decoder(Predicate).decode
_included: Final = msgspec.json.Decoder(dict[str, Any]).decode


class Filters:
    """Filters made ready, the last few. Any thread."""

    def __init__(self) -> None:
        self._ready: dict[tuple[str, bytes], Test] = {}

    def test(self, index: str, definition: IndexDefinition, tested: bytes) -> Test | None:
        """The test that a request's `filter` is; None for none.

        Args:
            index: id.

        Raises:
            CallerError: it is no predicate, or asks for what the index does not hold.
        """
        if not tested:
            return None
        ready = self._ready.get((index, tested))
        if ready is None:
            ready = entry_test(definition, tested)
            if len(self._ready) >= KEPT:
                self._ready.clear()
            self._ready[index, tested] = ready
        return ready


def entry_test(definition: IndexDefinition, tested: bytes) -> Test:
    """A predicate in JSON as a function of (entry key, value). Raises as `Filters.test`."""
    try:
        predicate = _decode(tested)
    except UNDECODABLE as error:
        raise CallerError(f"not a filter: {error}", status=422, problem_type="invalid-request") from error
    binding = Binding(definition)
    condition, needs = binding.test(predicate), binding.needs(predicate)
    parts = len(definition.keys) if needs.id else needs.parts
    directions = definition.descending[:parts]
    if needs.include or needs.id:
        return partial(_holds, condition, parts, directions, needs)
    return partial(_holds_of_key, condition, parts, directions)


def _holds_of_key(
    condition: Condition, parts: int, descending: tuple[bool, ...], entry_key: bytes, value: bytes
) -> bool:
    """Whether a condition on the leading key parts is true of an entry."""
    forms = unpack_value(value)[0] if value else b""
    key, _ = decode_key(entry_key, parts, descending, forms)
    return condition(key, "", _NOTHING) is True


def _holds(
    condition: Condition,
    parts: int,
    descending: tuple[bool, ...],
    needs: Needs,
    entry_key: bytes,
    value: bytes,
) -> bool:
    """Whether a condition is true of an entry."""
    forms, include = unpack_value(value)
    key, end = decode_key(entry_key, parts, descending, forms)
    docid = entry_key[end:].decode() if needs.id else ""
    columns = _included(include) if needs.include and include else _NOTHING
    return condition(key, docid, columns) is True
