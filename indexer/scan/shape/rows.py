"""Entries to the rows that readers see, and values as JSON bytes. Pure.

Numbers are written as they are, integers of any size exactly. But an expression may give an integer (`n * n`)
that has more digits than Python writes, and than JSON readers take: that is told, and is nobody's bug.

`RowMaker.rows` makes rows one by one, whatever they are. A page of a covering index is a few runs of entries
as a rule, whose keys differ in a number at their end or not at all: `RowMaker.page` writes the JSON of such a
run at once, to the same bytes, in less than half the time.
"""

from __future__ import annotations

import string
import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import chain, starmap
from operator import gt, itemgetter, lt
from typing import Any, Final

import msgspec

from indexer.scan.peer.messages import Entry
from indexer.scan.plan.selection import Shape
from keytide.collation import MISSING, Value, apply_forms, decode_key, decode_keys, to_json_value
from keytide.collation.layout import TAG_NUMBER
from keytide.errors import CallerError
from keytide.model.entry import unpack_keyed_value, unpack_value
from keytide.structure.place_columns import decoded_places

ALL_COLUMNS: Final = ("key", "id", "include")
_encoder: Final = msgspec.json.Encoder()
_NO_COLUMNS: Final = msgspec.Raw(b"{}")
_NUMBER: Final = bytes([TAG_NUMBER])
_NUMBER_BYTES: Final = 10
"""Of a non-negative number that is a double: the tag, the double, and 0 for no residual."""
_AS_IT_IS: Final = f"{string.digits}{string.ascii_letters} !#$%&'()*+,-./:;<=>?@[]^_`{{|}}~".encode()
"""Characters of a string that JSON has as they are."""
_FEW: Final = 12
"""A run of fewer rows takes as long as its rows one by one."""
_IN_VAIN: Final = 2
"""After so many looks for a run in vain the rest of a page is made row by row."""


class RowMaker:
    """Makes the rows of one index.

    Args:
        shape: of the index.
        columns: which members a row has; None for all.
    """

    def __init__(self, shape: Shape, columns: Sequence[str] | None) -> None:
        self._parts = shape.parts
        self._descending = shape.descending
        self._structure = shape.structure
        wanted = ALL_COLUMNS if columns is None else columns
        self._key = "key" in wanted
        self._id = "id" in wanted
        self._include = "include" in wanted and shape.includes
        special = shape.descending or shape.structure.has_places or shape.structure.key_in_value
        self._plain = self._key and self._id and not self._include and not special

    def page(self, entries: Sequence[Entry]) -> list[Any]:
        """The JSON of `rows`, sooner of entries in order, or in reverse: a run of rows is one element, with
        the commas between them."""
        if not self._plain or any(map(itemgetter(1), entries)):
            return self.rows(entries)
        keys = [key for key, _ in entries]
        made: list[Any] = []
        at = done = in_vain = 0
        while at < len(keys) and in_vain < _IN_VAIN:
            end, written = _run(keys, at, self._parts)
            if written:
                made += [*self.rows(entries[done:at]), msgspec.Raw(written)]
                done = end
            in_vain += not written
            at = end
        return made + self.rows(entries[done:])

    def rows(self, entries: Iterable[Entry]) -> list[dict[str, Any]]:
        """Rows, ready for `msgspec.json`, one per entry. Rows may share a list of parts."""
        parts, descending = self._parts, self._descending
        with_key, with_id, with_include = self._key, self._id, self._include
        made: list[dict[str, Any]] = []
        if self._structure.has_places:
            return self._rows_of_places(entries)
        if self._structure.key_in_value:
            entries = starmap(self._structure.in_full, entries)
        entries = list(entries)
        decoded = decode_keys([key for key, _ in entries], parts, descending)
        for (entry_key, value), (found, end) in zip(entries, decoded, strict=True):
            include: bytes | None = None
            key: Sequence[Value] = found
            if value:
                forms, include = unpack_value(value)
                if forms:
                    key = apply_forms(found, forms)
            missing: list[int] | None = None
            if MISSING in key:
                missing = [at for at, part in enumerate(key) if part is MISSING]
                key = [to_json_value(part) for part in key]
            row: dict[str, Any] = {}
            if with_key:
                row["key"] = key
                if missing:
                    row["missing"] = missing
            if with_id:
                row["id"] = entry_key[end:].decode()
            if with_include:
                row["include"] = _NO_COLUMNS if include is None else msgspec.Raw(include)
            made.append(row)
        return made

    def _rows_of_places(self, entries: Iterable[Entry]) -> list[dict[str, Any]]:
        """The same of a spatial index, nearly all of whose keys are decoded together."""
        made: list[dict[str, Any]] = []
        entries = list(entries)
        unpacked = [unpack_keyed_value(value) for _, value in entries]
        places = decoded_places([b"" if forms else key for forms, _, key in unpacked]) if self._key else []
        for at, (entry_key, _) in enumerate(entries):
            row: dict[str, Any] = {}
            forms, include, key = unpacked[at]
            if self._key:
                place = places[at]
                row["key"] = decode_key(key, self._parts, (), forms)[0] if place is None else [place]
            if self._id:
                row["id"] = entry_key[self._structure.id_start(entry_key) :].decode()
            if self._include:
                row["include"] = _NO_COLUMNS if include is None else msgspec.Raw(include)
            made.append(row)
        return made


def _run(keys: Sequence[bytes], at: int, parts: int) -> tuple[int, bytes]:
    """The rows of a run of keys that share all parts but the last one, a number, or all parts.

    Args:
        keys: of an index without directions.
        at: where it begins.

    Returns:
        Where it ends, and its rows with commas between them; or b"" of what is to be made by `RowMaker.rows`,
        for it is no run, or not in order, or has anything that is not written as plainly.
    """
    first = keys[at]
    known, start = decode_key(first, parts - 1)
    numbers = first[start : start + 1] == _NUMBER
    if not numbers:
        known, start = decode_key(first, parts)
    head, few = first[:start], at + _FEW
    if few > len(keys) or not keys[few - 1].startswith(head):
        return min(few, len(keys)), b""
    end = len(keys)
    if not keys[-1].startswith(head):
        end = bisect_left(keys, True, few, key=lambda one: not one.startswith(head))
    run, count = keys[at:end], end - at
    if not (all(map(lt, run, run[1:])) or all(map(gt, run, run[1:]))):
        return end, b""  # (else all have the head that the first and the last one have)
    id_at = start + _NUMBER_BYTES if numbers else start
    ids = list(map(itemgetter(slice(id_at, None)), run))
    if MISSING in known or b"".join(ids).translate(None, _AS_IT_IS):
        return end, b""
    if not numbers:
        row = b'{"key":' + encode(known) + b',"id":"'
        return end, row + (b'"},' + row).join(ids) + b'"}'
    lasts = b"".join(map(itemgetter(slice(start, id_at)), run))
    if (
        len(lasts) != count * _NUMBER_BYTES
        or lasts[::_NUMBER_BYTES].count(_NUMBER) != count
        or lasts[_NUMBER_BYTES - 1 :: _NUMBER_BYTES].count(0) != count
    ):
        return end, b""
    doubles: Iterable[float] = chain.from_iterable(struct.iter_unpack(">xdx", lasts))
    texts = encode([int(one) if one.is_integer() else one for one in doubles])[1:-1].split(b",")
    row = b'{"key":' + encode(known)[:-1] + (b"," if known else b"")
    return end, row + (b'"},' + row).join(map(b'],"id":"'.join, zip(texts, ids, strict=True))) + b'"}'


class TooManyDigitsError(CallerError):
    """An integer in the answer has more than 4300 digits."""

    problem_type = "too-many-digits"
    status = 422


def encode(value: Any) -> bytes:
    """A value as JSON.

    Raises:
        TooManyDigitsError: there is such an integer in it.
    """
    try:
        return _encoder.encode(value)
    except ValueError as error:
        raise _told(error) from error


def encode_lines(rows: Iterable[Any]) -> bytes:
    """Rows as lines of JSON. Raises as `encode`."""
    try:
        return _encoder.encode_lines(rows)
    except ValueError as error:
        raise _told(error) from error


def _told(error: ValueError) -> Exception:
    """What a reader is told of an error of the encoder."""
    if "digits" not in str(error):
        return error
    return TooManyDigitsError(
        "an integer in the answer has more than 4300 digits, which JSON readers do not take",
        next_step="leave the key out (`columns`), select around it, or index CAST(... AS double precision)",
    )
