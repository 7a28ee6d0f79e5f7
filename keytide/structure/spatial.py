"""`spatial`: entries in the order of the cells that their documents' places lie in.

Theory of operation
===================
The stored key is a cell of a hierarchy of squares, eight bytes (`keytide.geometry`): on the globe the S2
cells, in a plane those of a quadtree. Cells follow a curve that fills space, and those within a cell are one
stretch of the order, so the store stays one ordered tree (as in CockroachDB and MongoDB, and unlike an R-tree
whose pages split and merge). A point has one cell, a line or an area a *covering* of a few: it has as many
entries, each with the canonical key (the GeoJSON as the document has it) and, where there are several, the
list of all.

A condition is answered by the cells that a place which meets it can have: those within the covering of the
condition's shape, and those around it. Which of the entries found there do meet it, the exact test says, a
condition like any other (`keytide.definition.spatial`).

A document is given once, whatever the number of its cells: by the entry of the first of its cells that is
read, which each entry knows from its list (`firsts_of_several`). Nothing is remembered while reading, so this
holds across pages, slices and nodes, also where cells of one document lie on several (RANGE(cell)).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, ClassVar, Final, Self, final

import numpy as np

from keytide.collation import Span, decode_key, encode_part, key_forms, successor
from keytide.collation.layout import TAG_NUMBER
from keytide.errors import InvariantViolationError
from keytide.geometry import (
    CELL_BYTES,
    Frame,
    Geometry,
    NotAGeometryError,
    QueryShape,
    cells_of,
    geometry_of,
    indexed_geometry,
    point_cells,
    quick_cells_of_rings,
    sound_rings,
)
from keytide.geometry.geojson import MOST_COORDINATES
from keytide.model.entry import PLACED, Entry, places_of
from keytide.model.protocol import PLACES
from keytide.structure.interface import (
    ORDERED_INSTEAD,
    Box,
    Boxed,
    NotOrderedError,
    PlaceKeys,
    Selected,
    WantedKeys,
    Wishes,
)
from keytide.structure.keyed import KeyedStructure
from keytide.structure.point_keys import keys_of_points, plain_points, point_cell_of, points_of, rows_of
from keytide.structure.ring_keys import rings_of

GEOGRAPHIC_SRID: Final = 4326
"""WGS 84: longitude and latitude in degrees."""
PLANAR_SRID: Final = 0
MOST_CELLS: Final = 8
"""Of a document: more are a closer covering, and more entries."""
MOST_BYTES: Final = 512 * 1024
"""Of the keys of a document's entries together: each has the whole one, so large ones have fewer cells."""
MOST_SPANS: Final = 32
"""Of a condition: more are a closer covering, and more seeks."""
_PART: Final = 1
_DOUBLE_BITS: Final = 53
_LOW_BITS: Final = 11
_pack_exact: Final = struct.Struct(">BdB").pack
_pack_byte: Final = struct.Struct(">BdBB").pack
_pack_bytes: Final = struct.Struct(">BdBH").pack
_EXACT: Final = 10
"""Bytes of a whole number whose double is exact: tag, double, how many bytes are left over."""
KeySpan = tuple[bytes, bytes | None]


def frame_of(srid: int) -> Frame:
    """In what the coordinates of a system are."""
    return "planar" if srid == PLANAR_SRID else "geographic"


def geometry_of_key(key: bytes, srid: int) -> Geometry:
    """The geometry that a canonical key is which an index holds.

    Raises:
        NotAGeometryError: it is none, so no index has it.
    """
    return indexed_geometry(decode_key(key, _PART)[0][0], frame_of(srid))


def cell_key(cell: int) -> bytes:
    """A cell as a stored key."""
    return cell.to_bytes(CELL_BYTES, "big")


def partition_key_of(stored: bytes) -> bytes:
    """What an entry is partitioned by with RANGE(cell): the cell as a number (encoded). As `encode_part` has
    it, faster: of so large a whole number a double has the first 53 bits, and the residual is the others."""
    cell = int.from_bytes(stored, "big")
    below = cell & (1 << max(0, cell.bit_length() - _DOUBLE_BITS)) - 1
    if not below:
        return _pack_exact(TAG_NUMBER, cell, 0)
    if below < 256:
        return _pack_byte(TAG_NUMBER, cell - below, 1, below)
    return _pack_bytes(TAG_NUMBER, cell - below, 2, below)


def partition_keys_of(stored: Sequence[bytes]) -> list[bytes]:
    """The same of many."""
    cells = np.frombuffer(b"".join(stored), ">u8").astype(np.uint64)
    # Of how many bits a cell is, told by the upper ones: these are a double exactly.
    upper = cells >> np.uint64(_LOW_BITS)
    bits = np.where(upper > 0, np.frexp(upper.astype(np.float64))[1] + _LOW_BITS, 0)
    shift = np.maximum(0, bits - _DOUBLE_BITS).astype(np.uint64)
    below = cells & ((np.uint64(1) << shift) - np.uint64(1))
    table = np.empty((len(cells), _EXACT + 2), np.uint8)
    table[:, 0] = TAG_NUMBER
    table[:, 1:9] = (cells - below).astype(np.float64).astype(">f8").view(np.uint8).reshape(-1, 8)
    table[:, 9] = (below > 0).astype(np.uint8) + (below > 0xFF)
    table[:, 10] = np.where(below > 0xFF, below >> np.uint64(8), below)
    table[:, 11] = below & np.uint64(0xFF)
    lengths = (_EXACT + table[:, 9]).tolist()
    return [row[:length] for row, length in zip(rows_of(table), lengths, strict=True)]


@final
@dataclass(frozen=True, slots=True)
class Spatial(KeyedStructure):
    """The structure of an index USING spatial.

    Args:
        parts: how many parts its key has: one.
        descending: its direction: ascending.
        srid: 4326 on the globe, 0 in a plane.
    """

    name: ClassVar = "spatial"
    since: ClassVar = PLACES
    has_places: ClassVar = True
    several: ClassVar = True
    stored_bytes: ClassVar[int | None] = CELL_BYTES

    parts: int
    descending: tuple[bool, ...] = ()
    srid: int = GEOGRAPHIC_SRID

    @classmethod
    def made(cls, parts: int, descending: tuple[bool, ...], srid: int) -> Self:
        return cls(parts, descending, srid)

    def fault(self, wishes: Wishes) -> tuple[str, str] | None:
        if wishes.unique:
            return (
                "a spatial index is not UNIQUE: places overlap rather than being equal",
                "Leave UNIQUE out.",
            )
        if wishes.include_missing:
            return (
                "a document without a place lies in no cell, so a spatial index leaves it out",
                "Leave include_missing out.",
            )
        if wishes.elements:
            return (
                "UNNEST makes an entry of each element, and a spatial index has one place of each document",
                "Index a GeometryCollection, or a MultiPoint.",
            )
        if any(self.descending):
            return "places have no order, so the key of a spatial index is not DESC", "Leave DESC out."
        if self.parts != _PART:
            return (
                "the key of a spatial index is one place",
                "INCLUDE the others, or write POINT(lon, lat) for a place of two fields.",
            )
        return None

    def stored(self, keys: Sequence[bytes]) -> list[tuple[bytes, ...]]:
        return list(map(self._stored, keys))

    def indexed_places(self, values: Sequence[Any]) -> list[PlaceKeys | Exception]:
        """As `PlaceStructure` has it: points together."""
        frame = frame_of(self.srid)
        are, xs, ys = plain_points(values, frame)
        cells = point_cells(xs, ys, frame).astype(">u8")
        stored = zip(rows_of(cells.view(np.uint8).reshape(-1, CELL_BYTES)), strict=True)
        points = zip(keys_of_points(xs, ys), repeat(b""), stored, strict=False)
        if len(xs) == len(values):
            return list(points)
        others = self._others([one for one, plain in zip(values, are.tolist(), strict=True) if not plain])
        return [next(points) if plain else next(others) for plain in are.tolist()]

    def _others(self, values: Sequence[Any]) -> Iterator[PlaceKeys | Exception]:
        """The same of other values than plain points."""
        forms: list[bytes] = []
        keys: list[bytes] = []
        failed: dict[int, Exception] = {}
        for at, value in enumerate(values):
            try:
                key, form = encode_part(value), key_forms((value,))
            except _failures() as error:
                failed[at] = error
            else:
                keys.append(key)
                forms.append(form)
        encoded = zip(keys, forms, self._cells_of_keys(keys), strict=True)
        for at in range(len(values)):
            if at in failed:
                yield failed[at]
            else:
                key, form, stored = next(encoded)
                yield stored if isinstance(stored, Exception) else (key, form, stored)

    def _cells_of_keys(self, keys: Sequence[bytes]) -> list[tuple[bytes, ...] | Exception]:
        """The stored keys of each of many documents' canonical keys, or why it has none: points together."""
        frame = frame_of(self.srid)
        are, xs, ys = points_of(keys)
        most_x, most_y = MOST_COORDINATES[frame]
        out = (np.abs(xs) > most_x) | (np.abs(ys) > most_y)
        if out.any():  # each by itself, which says what is wrong
            xs, ys = xs[~out], ys[~out]
            are[np.flatnonzero(are)[out]] = False
        written = point_cells(xs, ys, frame).astype(">u8").tobytes()
        points = iter([(written[at : at + CELL_BYTES],) for at in range(0, len(written), CELL_BYTES)])
        if len(written) == CELL_BYTES * len(keys):
            return list(points)
        areas = iter(
            self._areas([key for key, is_point in zip(keys, are.tolist(), strict=True) if not is_point])
        )
        return [next(points if is_point else areas) for is_point in are.tolist()]

    def _areas(self, keys: Sequence[bytes]) -> Iterator[tuple[bytes, ...] | Exception]:
        """The same of other keys than points: whether rings cross themselves is asked of many together."""
        are, rings = rings_of(keys, frame_of(self.srid))
        are[are] = sound = sound_rings(rings)
        rings = rings.some(sound)
        quick = enumerate(quick_cells_of_rings(rings, MOST_CELLS))
        for key, is_ring in zip(keys, are.tolist(), strict=True):
            number, cells = next(quick) if is_ring else (0, None)
            try:
                if cells is not None:
                    yield tuple(map(cell_key, cells))
                else:
                    yield self._cells(key, rings.geometry(number)) if is_ring else self._stored(key)
            except _failures() as error:
                yield error

    def _stored(self, key: bytes) -> tuple[bytes, ...]:
        frame = frame_of(self.srid)
        cell = point_cell_of(key, frame)
        if cell is not None:
            return (cell_key(cell),)
        return self._cells(key, geometry_of(decode_key(key, _PART)[0][0], frame))

    def _cells(self, key: bytes, geometry: Geometry) -> tuple[bytes, ...]:
        most = max(1, min(MOST_CELLS, MOST_BYTES // len(key)))
        return tuple(map(cell_key, cells_of(geometry, most)))

    def stem(self, key: bytes) -> bytes:
        del key
        return b""

    def id_start(self, entry_key: bytes) -> int:
        if len(entry_key) < CELL_BYTES:
            raise InvariantViolationError("KeyDecodes", f"{entry_key.hex()} has no whole cell")
        return CELL_BYTES

    def id_starts(self, entry_keys: Sequence[bytes]) -> list[int]:
        return list(map(self.id_start, entry_keys))

    def check(self, entry_key: bytes, value: bytes) -> None:
        stored = entry_key[: self.id_start(entry_key)]
        key = self.whole_key(value)
        try:
            places = self._cells(key, geometry_of_key(key, self.srid))
        except NotAGeometryError as error:
            raise InvariantViolationError("EntryDecodes", f"{key[:80].hex()} is no place: {error}") from error
        if stored not in places or (b"".join(places) if len(places) > 1 else b"") != places_of(value):
            raise InvariantViolationError("EntryDecodes", f"{entry_key.hex()} is none of {key[:80].hex()}")

    def selected(self, wanted: WantedKeys) -> Selected:
        if wanted.region is not None:
            return Selected(spans_of(wanted.region))
        for what, said in (("a prefix", wanted.prefix), ("values", wanted.equals)):
            if said is not None:
                raise _no_values(what)
        if wanted.low or wanted.high:
            raise _no_values("a range")
        return Selected((Span(),))

    def boxed(self, box: Box, most: int) -> Boxed | str:
        return "finds places only, by ST_Within, ST_Contains, ST_Intersects and ST_DWithin of its key"


def _failures() -> tuple[type[Exception], ...]:
    """What finding the cells of one place may raise, which concerns that document alone."""
    import shapely

    return (ArithmeticError, LookupError, RecursionError, TypeError, ValueError, shapely.errors.ShapelyError)


def spans_of(region: QueryShape) -> list[Span]:
    """The entries whose documents can meet a condition: ascending, disjoint."""
    return spans_of_cells(region.spans(MOST_SPANS))


def spans_of_cells(cells: Sequence[tuple[int, int]]) -> list[Span]:
    """The entries of inclusive ranges of cells."""
    return [Span(cell_key(low), successor(cell_key(high))) for low, high in cells]


def intersected(first: Sequence[Span], second: Sequence[Span]) -> list[Span]:
    """What lies in both of two ascending, disjoint lists of spans; ascending, disjoint."""
    found: list[Span] = []
    at = other = 0
    while at < len(first) and other < len(second):
        one, two = first[at], second[other]
        low = max(one.low, two.low)
        ends = [high for high in (one.high, two.high) if high is not None]
        both = Span(low, min(ends) if ends else None)
        if not both.empty:
            found.append(both)
        if one.high is None or (two.high is not None and two.high <= one.high):
            other += 1
        else:
            at += 1
    return found


def firsts_of_several(spans: Sequence[KeySpan]) -> Callable[[Sequence[Entry]], list[Entry]]:
    """Picks of entries (entry key, value) of some spans those by which their documents are given: that of the
    first cell of a document's that lies in the spans.

    Args:
        spans: ascending, disjoint.

    The function raises:
        InvariantViolationError: a value was not made for this structure.
    """
    lows = [low for low, _ in spans]
    highs = [high for _, high in spans]

    def first_read(value: bytes) -> bytes:
        """The first of a value's places that is read."""
        places = places_of(value)
        for at in range(0, len(places), CELL_BYTES):
            place = places[at : at + CELL_BYTES]
            span = bisect_right(lows, place) - 1
            if span >= 0 and ((high := highs[span]) is None or place < high):
                return place
        return b""

    def firsts(entries: Sequence[Entry]) -> list[Entry]:
        known: dict[bytes, bytes] = {}  # entries of one document have the same value, and are near
        found: list[Entry] = []
        for entry in entries:
            entry_key, value = entry
            if value.startswith(PLACED):
                first = known.get(value)
                if first is None:
                    first = known[value] = first_read(value)
                if not entry_key.startswith(first):
                    continue
            found.append(entry)
        return found

    return firsts


def _no_values(what: str) -> NotOrderedError:
    return NotOrderedError(
        f"a spatial index does not answer {what}: it finds places only, and has no order",
        next_step=f"Ask `within`, `contains`, `intersects` or `near`, or {ORDERED_INSTEAD}.",
    )
