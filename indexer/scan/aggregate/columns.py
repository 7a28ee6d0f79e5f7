"""Columns of a block of entries: what an aggregate's expressions are over, added to accumulators. Pure.

Theory of operation
===================
Most aggregates are over key parts, and most key parts are numbers, ten bytes at a known place of the entry
key. A block's are cut out, put together and read as one numpy table: tags, doubles, residuals. No value is
made of them, and the code words serve as they are for extremes and distinct values. What is unusual (integers
beyond 2**53, numbers with a form) is decoded one by one; a string in a sum is counted and not even decoded.

Entries come in key order. So a part behind parts that all entries of a stretch share is in order itself, and
its extremes are its first and last values.

Everything else (included columns, expressions) is decoded entry by entry, only what is needed, and worked out
by bound expressions (`keytide.definition.binding`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any, Final, cast

import msgspec
import numpy as np
import numpy.typing as npt

from indexer.scan.aggregate.accumulators import Accumulator, Wants
from keytide.collation import Json, Value, decode_key, skip_key, successor
from keytide.collation.layout import INVERTED, STRING_END, TAG_NEGATIVE, TAG_NULL, TAG_NUMBER, TAG_STRING
from keytide.definition.binding import Evaluate, Needs
from keytide.definition.index import IndexDefinition
from keytide.model.entry import pack_value, unpack_value

EntryValues = tuple[Sequence[Value], str, Mapping[str, Json]]
"""What bound expressions take: key parts (the leading ones that are needed), id, included columns."""

NO_FORMS: Final = pack_value(b"", b"")[:3]
"""How the value of an entry begins that has included columns and no forms."""
NUMBER_BYTES: Final = 10
"""A number's code word, when its double is exact: tag, double, no residual."""
FEW: Final = 24
"""Up to so many entries are faster one by one than by numpy."""

_decode_include: Final = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class EntryRun:
    """Some entries of a block in key order, as columns.

    Attributes:
        read: what bound expressions take of each; empty when nothing needs it.
        shared: how many leading key parts are equal in all of them.
    """

    keys: list[bytes]
    values: list[bytes]
    read: list[EntryValues]
    shared: int

    def part(self, begin: int, end: int, shared: int) -> EntryRun:
        """The entries from `begin` to before `end`."""
        if begin == 0 and end == len(self.keys):
            return EntryRun(self.keys, self.values, self.read, shared)
        return EntryRun(self.keys[begin:end], self.values[begin:end], self.read[begin:end], shared)

    def pick(self, chosen: Sequence[int]) -> EntryRun:
        """Some of them, in order."""
        read = [self.read[at] for at in chosen] if self.read else []
        return EntryRun(
            [self.keys[at] for at in chosen], [self.values[at] for at in chosen], read, self.shared
        )


class EntryReader:
    """Decodes entries, as much of them as is needed.

    Args:
        definition: of the index.
        needs: what is to be decoded.
    """

    def __init__(self, definition: IndexDefinition, needs: Needs) -> None:
        self._parts = len(definition.keys)
        self._descending = definition.descending
        self._structure = definition.structure
        self._needs = needs

    def read(self, keys: Sequence[bytes], values: Sequence[bytes]) -> list[EntryValues]:
        """What bound expressions take, of each entry."""
        parts, descending, needs = self._parts, self._descending, self._needs
        wanted = needs.parts
        made: list[EntryValues] = []
        key: list[Value] = []
        id_ = ""
        include: Mapping[str, Json] = {}
        entries: Iterable[tuple[bytes, bytes]] = zip(keys, values, strict=True)
        if self._structure.key_in_value:
            entries = starmap(self._structure.in_full, entries)
        for entry, value in entries:
            forms, columns = unpack_value(value) if value else (b"", None)
            end = 0
            if wanted:
                key, end = decode_key(entry, wanted, descending, forms)
            if needs.id:
                if wanted != parts:
                    end = skip_key(entry, parts, descending)
                id_ = entry[end:].decode()
            if needs.include:
                include = _decode_include(columns) if columns else {}
            made.append((key, id_, include))
        return made


class AggregateColumn:
    """One expression, and how its values get into accumulators."""

    def add(self, stretch: EntryRun, to: Accumulator) -> None:
        raise NotImplementedError


class ExpressionColumn(AggregateColumn):
    """Any expression: worked out entry by entry."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate

    def add(self, stretch: EntryRun, to: Accumulator) -> None:
        to.add_values([self._evaluate(*read) for read in stretch.read], stretch.keys)


class KeyColumn(AggregateColumn):
    """A key part.

    Args:
        ordinal: which.
        descending: the index's directions.
    """

    def __init__(self, ordinal: int, descending: Sequence[bool], wants: Wants) -> None:
        self._ordinal = ordinal
        self._descending = descending
        self._inverted = bool(descending) and descending[ordinal]
        self._wants = wants

    def add(self, stretch: EntryRun, to: Accumulator) -> None:
        keys = stretch.keys
        if len(keys) <= FEW:
            for entry, value in zip(keys, stretch.values, strict=True):
                to.add(self._value(entry, value), entry)
            return
        in_order = self._ordinal <= stretch.shared
        if in_order:
            at = skip_key(keys[0], self._ordinal, self._descending)
            end = at + NUMBER_BYTES
            words = [key[at:end] for key in keys]
        else:
            places = self._places(keys)
            words = [key[at : at + NUMBER_BYTES] for key, at in zip(keys, places, strict=True)]
        table = self._table(words)
        present = table[:, 0] > TAG_NULL
        self._count(stretch, table, present, to)
        if self._wants.extremes and in_order:
            self._ends(stretch, present, to)
        if self._wants.distinct or (self._wants.extremes and not in_order):
            self._codes(stretch, present, to)

    def _places(self, keys: Sequence[bytes]) -> list[int]:
        """Where the part begins in each key."""
        # Behind one string is the usual place. Keys are in order: if the first and the last begin with a
        # string, all do.
        if self._ordinal == 1 and not self._descending and keys[0][0] == keys[-1][0] == TAG_STRING:
            return [key.index(STRING_END, 1) + 2 for key in keys]
        return [skip_key(key, self._ordinal, self._descending) for key in keys]

    def _table(self, words: list[bytes]) -> npt.NDArray[np.uint8]:
        """The beginnings of the part's code words as rows of ten bytes, ascending."""
        data = b"".join(words)
        if len(data) != NUMBER_BYTES * len(words):  # short ids behind short words
            data = b"".join(
                [word.ljust(NUMBER_BYTES, b"\xff" if self._inverted else b"\0") for word in words]
            )
        if self._inverted:
            data = data.translate(INVERTED)
        return np.frombuffer(data, np.uint8).reshape(-1, NUMBER_BYTES)

    def _count(
        self,
        stretch: EntryRun,
        table: npt.NDArray[np.uint8],
        present: npt.NDArray[np.bool_],
        to: Accumulator,
    ) -> None:
        """Count what is there, and sum the numbers of it."""
        if not self._wants.sums:
            to.count_only(int(np.count_nonzero(present)))
            return
        tags = table[:, 0]
        negative = tags == TAG_NEGATIVE
        number = negative | (tags == TAG_NUMBER)
        to.count_only(int(np.count_nonzero(present & ~number)))
        body = table[:, 1:9].copy()
        if negative.any():
            body[negative] = ~body[negative]
        doubles = body.view(">f8").ravel().astype(np.float64)
        plain = number & (table[:, 9] == 0) & np.isfinite(doubles)
        if any(stretch.values):
            plain &= np.array([not value or value.startswith(NO_FORMS) for value in stretch.values])
        whole = bool(plain.all())
        to.add_numbers(doubles if whole else doubles[plain])
        if not whole:
            for at in np.flatnonzero(number & ~plain).tolist():
                to.add_number(self._value(stretch.keys[at], stretch.values[at]))

    def _ends(self, stretch: EntryRun, present: npt.NDArray[np.bool_], to: Accumulator) -> None:
        """Extremes of a part that is in order."""
        there = np.flatnonzero(present)
        if not len(there):
            return
        first, last = int(there[0]), int(there[-1])
        if self._inverted:  # of the greatest the last entry counts, of the least the first
            keys = stretch.keys
            first, last = (
                bisect_left(keys, successor(self._up_to(keys[first]))) - 1,
                bisect_left(keys, self._up_to(keys[last])),
            )
        for at in (first, last):
            entry = stretch.keys[at]
            to.stretch(self._code(entry), entry, self._value(entry, stretch.values[at]))

    def _up_to(self, entry: bytes) -> bytes:
        """The entry key up to the part's end."""
        return entry[: skip_key(entry, self._ordinal + 1, self._descending)]

    def _codes(self, stretch: EntryRun, present: npt.NDArray[np.bool_], to: Accumulator) -> None:
        """Extremes and distinct values of a part in any order."""
        there = np.flatnonzero(present).tolist()
        codes = [self._code(stretch.keys[at]) for at in there]
        if not codes:
            return
        if self._wants.distinct:
            to.add_codes(codes)
        if self._wants.extremes:
            least, greatest = min(codes), max(codes)
            last = len(codes) - 1 - codes[::-1].index(greatest)
            for code, place in ((least, codes.index(least)), (greatest, last)):
                entry = stretch.keys[there[place]]
                to.stretch(code, entry, self._value(entry, stretch.values[there[place]]))

    def _code(self, entry: bytes) -> bytes:
        """The part's code word in ascending order."""
        begin = skip_key(entry, self._ordinal, self._descending) if self._ordinal else 0
        code = entry[begin : skip_key(entry, self._ordinal + 1, self._descending)]
        return code.translate(INVERTED) if self._inverted else code

    def _value(self, entry: bytes, value: bytes) -> Value:
        forms = unpack_value(value)[0] if value else b""
        return decode_key(entry, self._ordinal + 1, self._descending, forms)[0][self._ordinal]


def filtered(stretch: EntryRun, test: Callable[..., bool | None]) -> EntryRun:
    """The entries for which a condition is true."""
    chosen = [at for at, read in enumerate(stretch.read) if test(*read) is True]
    return stretch if len(chosen) == len(stretch.keys) else stretch.pick(chosen)


def columns_of(rows: Sequence[tuple[bytes, bytes]]) -> tuple[list[bytes], list[bytes]]:
    """A block as a column of entry keys and one of values."""
    keys, values = zip(*rows, strict=True)
    return list(cast(tuple[bytes, ...], keys)), list(cast(tuple[bytes, ...], values))
