"""A reader's condition over entries, as a function that a slice can call per entry.

Conditions are kept, for many readers ask with the same; the keys that entries must have are a reader's own,
and nothing is to be made ready for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from indexer.scan.local.place_filter import PlaceTest, parted
from indexer.scan.peer.messages import Entry, ReadShape
from keytide.collation import decode_key
from keytide.definition.binding import Binding, Needs
from keytide.definition.binding import Test as Condition
from keytide.definition.expression import Predicate
from keytide.definition.index import IndexDefinition
from keytide.errors import UNDECODABLE, CallerError
from keytide.model.entry import unpack_keyed_value, unpack_value
from keytide.query.parse.normal import conjunction
from keytide.structure import Structure

KEPT: Final = 64
"""Filters that a node keeps ready: pages and blocks of one read come with the same."""

ReadyT = TypeVar("ReadyT")
EntryTest = Callable[[bytes, bytes], bool]
"""Whether an entry (entry key, value) is wanted."""

_NOTHING: Final[dict[str, Any]] = {}
_decode: Final = msgspec.json.Decoder(Predicate).decode
_encode: Final = msgspec.json.encode
_included: Final = msgspec.json.Decoder(dict[str, Any]).decode


class _FilterCache(Generic[ReadyT]):
    """Filters made ready, the last few. Any thread."""

    def __init__(self, make: Callable[[IndexDefinition, bytes], ReadyT]) -> None:
        self._make = make
        self._ready: dict[tuple[str, bytes], tuple[IndexDefinition, ReadyT]] = {}

    def of(self, index: str, definition: IndexDefinition, tested: bytes) -> ReadyT | None:
        """What a request's `filter` is, ready for use; None for none.

        Args:
            index: id.

        Raises:
            CallerError: it is no predicate, or asks for what the index does not hold.
        """
        if not tested:
            return None
        kept = self._ready.get((index, tested))
        if kept is not None and kept[0] == definition:  # (a test has several clusters in one process)
            return kept[1]
        ready = self._make(definition, tested)
        if len(self._ready) >= KEPT:
            self._ready.clear()
        self._ready[index, tested] = (definition, ready)
        return ready


class Bound(NamedTuple):
    """A condition, and what of an entry it looks at."""

    test: Condition
    needs: Needs


def _decoded(tested: bytes) -> Predicate:
    try:
        decoded: Predicate = _decode(tested)
    except UNDECODABLE as error:
        raise CallerError(f"not a filter: {error}", status=422, problem_type="invalid-request") from error
    return decoded


def bound(definition: IndexDefinition, tested: bytes) -> Bound:
    """A filter in JSON (`indexer.scan.plan.selection.filter_json`) as a condition of the parts of an entry.

    Raises:
        CallerError: it is no filter, or asks for what the index does not hold.
    """
    decoded = _decoded(tested)
    binding = Binding(definition)
    return Bound(binding.test(decoded), binding.needs(decoded))


def picked(test: EntryTest | None, entries: Sequence[Entry]) -> Sequence[Entry]:
    """The entries for which a test is true, in order."""
    if test is None:
        return entries
    pick: Callable[[Sequence[Entry]], Sequence[Entry]] | None = getattr(test, "pick", None)
    if pick is not None:  # a test that takes many at once
        return pick(entries)
    return [entry for entry in entries if test(*entry)]


def entry_test(definition: IndexDefinition, tested: bytes) -> EntryTest:
    """A filter in JSON as a function of (entry key, value). Raises as `bound`."""
    if definition.structure_type.has_places:
        places, others = parted(definition, _decoded(tested))
        if places:
            rest = conjunction(others) if others else None
            return PlaceTest(places, None if rest is None else _entry_test(definition, _encode(rest)))
    return _entry_test(definition, tested)


def _entry_test(definition: IndexDefinition, tested: bytes) -> EntryTest:
    condition, needs = bound(definition, tested)
    parts = len(definition.keys) if needs.id else needs.parts
    directions = definition.descending[:parts]
    if needs.include or needs.id:
        test: EntryTest = partial(_holds, condition, parts, directions, needs)
    else:
        test = partial(_holds_of_key, condition, parts, directions)
    if not definition.structure.key_in_value:
        return test
    in_full = definition.structure.in_full
    return lambda entry_key, value: test(*in_full(entry_key, value))


def key_test(structure: Structure, keys: frozenset[bytes]) -> EntryTest:
    """Whether an entry has one of these canonical keys: their bytes are compared, and no value is made.

    The test raises:
        InvariantViolationError: the entry was not made for this structure.
    """
    if structure.key_in_value:
        return lambda entry_key, value: unpack_keyed_value(value)[2] in keys
    return lambda entry_key, value: entry_key[: structure.id_start(entry_key)] in keys


class Filters(_FilterCache[EntryTest]):
    """Filters as functions of (entry key, value)."""

    def __init__(self) -> None:
        super().__init__(entry_test)

    def test(self, index: str, definition: IndexDefinition, shape: ReadShape) -> EntryTest | None:
        """What a request tests of entries: that they have its keys, then its filter; None for nothing.

        Args:
            index: id.

        Raises:
            CallerError: as `of`.
        """
        test = self.of(index, definition, shape.filter)
        if not shape.keys:
            return test
        has_key = key_test(definition.structure, shape.keys)
        if test is None:
            return has_key
        return lambda entry_key, value: has_key(entry_key, value) and test(entry_key, value)


class Conditions(_FilterCache[Bound]):
    """Filters as conditions."""

    def __init__(self) -> None:
        super().__init__(bound)


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
