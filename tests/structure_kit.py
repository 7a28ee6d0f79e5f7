"""Entries as indexes of each structure store them; documents and conditions that suit a structure, by what
its interface says of it; and digests that are too short to tell keys apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from unittest import mock

import numpy as np
from hypothesis import strategies as st

from keytide.collation import encode_key, encode_part
from keytide.definition.index import IndexDefinition
from keytide.geometry import QueryShape, geometry_of
from keytide.model.entry import MAX_KEY_BYTES, pack_keyed_value, pack_value
from keytide.structure import STRUCTURES, Structure, WantedKeys, hashed, structure_of

Made = tuple[bytes, bytes, bytes | None]
"""(canonical key, forms, included columns as JSON) of one entry."""


def as_stored(definition: IndexDefinition, made: Sequence[Made]) -> list[tuple[bytes, bytes]]:
    """(stored key, value) of the entries of one document."""
    return [(stored, value) for entries in entries_by_key(definition, made) for stored, value in entries]


def entries_by_key(definition: IndexDefinition, made: Sequence[Made]) -> list[list[tuple[bytes, bytes]]]:
    """The same, those of each key by themselves."""
    structure = definition.structure
    found = []
    for (key, forms, include), keys in zip(made, structure.stored([key for key, _, _ in made]), strict=True):
        places = b"".join(keys) if len(keys) > 1 else b""
        keyed = pack_keyed_value(forms, include, key, places)
        value = keyed if structure.key_in_value else pack_value(forms, include)
        found.append([(one, value) for one in keys])
    return found


def places(west: float = -180.0, south: float = -90.0, east: float = 180.0, north: float = 90.0) -> Any:
    """GeoJSON geometries within a box, small and large, as a strategy: points mostly."""
    x = st.one_of(st.floats(west, east, width=32), st.integers(math.ceil(west), math.floor(east)))
    y = st.one_of(st.floats(south, north, width=32), st.integers(math.ceil(south), math.floor(north)))
    position = st.tuples(x, y).map(list)
    point = st.builds(lambda at: {"type": "Point", "coordinates": at}, position)
    several = st.lists(position, min_size=2, max_size=4, unique_by=tuple)
    points = several.map(lambda found: {"type": "MultiPoint", "coordinates": found})

    def box(corner: list[float], width: float, height: float) -> dict[str, Any]:
        x, y = corner
        left, right = max(west, x - width), min(east, x + width)
        low, high = max(south, y - height), min(north, y + height)
        ring = [[left, low], [right, low], [right, high], [left, high], [left, low]]
        return {"type": "Polygon", "coordinates": [ring]}

    size = st.sampled_from([0.001, 0.5, 20.0])
    inner = st.tuples(
        st.floats(west + 1, east - 1, width=32), st.floats(max(south, -80) + 1, min(north, 80) - 1, width=32)
    ).map(list)
    return st.one_of(point, point, points, st.builds(box, inner, size, size))


Key = tuple[Any, ...]


@dataclass(frozen=True)
class Condition:
    """A selection, and which keys are meant by it, told without the structure.

    Attributes:
        away: keys that must not even be read, where more may be than is meant: far from the places that are.
    """

    wanted: WantedKeys
    means: Callable[[Key], bool]
    away: tuple[Key, ...] = ()


@dataclass(frozen=True)
class Kit:
    """What a structure is tried with.

    Attributes:
        columns: of CREATE INDEX, as many as each key has parts.
        keys: some different keys of one document.
        whole: a condition that one key meets, and everything that equals it.
        conditions: more, around some keys.
        large: a document whose key is longer than any that a btree takes.
        no_entry_keys: bytes that no entry key can be.
        where: a condition of a query that is answered.
    """

    columns: tuple[str, ...]
    keys: st.SearchStrategy[list[Key]]
    whole: Callable[[Key], Condition]
    conditions: Callable[[list[Key]], st.SearchStrategy[Condition]]
    large: dict[str, Any]
    no_entry_keys: tuple[bytes, ...]
    where: str

    def document(self, key: Key) -> dict[str, Any]:
        """One that has a key."""
        return {**dict(zip(self.columns, key, strict=True)), "c": 1}


def kit_of(name: str) -> Kit:
    """That of a structure, by what it says of itself: keys are values or places."""
    return _OF_PLACES if STRUCTURES[name].has_places else _OF_VALUES


@contextmanager
def registered(structure: type[Structure]) -> Iterator[None]:
    """There is one more structure."""
    with mock.patch.dict(STRUCTURES, {structure.name: structure}):
        try:
            yield
        finally:
            structure_of.cache_clear()


def _equal(key: Key) -> Condition:
    return Condition(WantedKeys(equals=list(key)), lambda other: encode_key(other) == encode_key(key))


def _codes(parts: Sequence[Any]) -> list[bytes]:
    return [encode_part(part) for part in parts]


@st.composite
def _value_conditions(draw: st.DrawFn, keys: list[Key]) -> Condition:
    """Leading parts, ranges and prefixes around some keys."""
    one, other = draw(st.sampled_from(keys)), draw(st.sampled_from(keys))
    kind = draw(st.sampled_from(["equals", "range", "range", "prefix"]))
    if kind == "equals":
        leading = one[: draw(st.integers(1, len(one)))]
        return Condition(
            WantedKeys(equals=list(leading)), lambda key: _codes(key)[: len(leading)] == _codes(leading)
        )
    if kind == "prefix":
        begins = draw(st.text(max_size=1))
        before = one[: draw(st.integers(0, len(one) - 1))]
        at = len(before)
        return Condition(
            WantedKeys(equals=list(before), prefix=begins),
            lambda key: (
                _codes(key)[:at] == _codes(before) and isinstance(key[at], str) and key[at].startswith(begins)
            ),
        )
    low = one[: draw(st.integers(0, len(one)))]
    high = other[: draw(st.integers(0 if low else 1, len(other)))]
    inclusion: Literal["both", "low", "high", "neither"] = draw(
        st.sampled_from(["both", "low", "high", "neither"])
    )

    def between(key: Key) -> bool:
        codes = _codes(key)
        above, below = codes[: len(low)], codes[: len(high)]
        return (
            not low or above > _codes(low) or (above == _codes(low) and inclusion in ("both", "low"))
        ) and (not high or below < _codes(high) or (below == _codes(high) and inclusion in ("both", "high")))

    return Condition(WantedKeys(low=list(low) or None, high=list(high) or None, inclusion=inclusion), between)


def _meeting(relation: Any, place: Any, metres: float = 0.0) -> Condition:
    shape = QueryShape(relation, geometry_of(place, "geographic"), metres)
    return Condition(
        WantedKeys(region=shape),
        lambda key: bool(shape.test(geometry_of(key[0], "geographic"))),
        _far_from(place, metres),
    )


def _far_from(place: Any, metres: float) -> tuple[Key, ...]:
    """Points all over the globe, and two near a place, farther from it than cells around it may be."""
    corners = _positions(place)
    vectors = _vectors(corners)
    reach = _SLACK + 2 * metres / _METRES
    if place["type"] == "MultiPoint":
        reach += _SLACK_OF_SEVERAL
    elif place["type"] != "Point":
        reach += 2 * float(_degrees(vectors, vectors).max())
    (x, y), step = corners[0], 1.1 * reach
    about = [((x + step + 180) % 360 - 180, y), (x, y + step if y < 0 else y - step)]
    there = [*_GLOBE, *about] if step < 90 else _GLOBE
    apart = _degrees(_vectors(there), vectors).min(axis=1) > reach
    return tuple(
        ({"type": "Point", "coordinates": list(map(float, position))},)
        for position, is_far in zip(there, apart, strict=True)
        if is_far
    )


def _positions(place: Any) -> list[Any]:
    """All positions of a GeoJSON geometry."""
    if place["type"] == "GeometryCollection":
        return [position for one in place["geometries"] for position in _positions(one)]
    found = [place["coordinates"]]
    while isinstance(found[0][0], list):
        found = [one for some in found for one in some]
    return found


def _vectors(positions: Sequence[Any]) -> Any:
    """Unit vectors of positions in degrees, (n, 3)."""
    x, y = np.radians(np.array(positions, np.float64)).T
    return np.stack([np.cos(y) * np.cos(x), np.cos(y) * np.sin(x), np.sin(y)], axis=1)


def _degrees(some: Any, others: Any) -> Any:
    """How far unit vectors are from others, in degrees, (n, m)."""
    chords = np.linalg.norm(some[:, None] - others[None], axis=2)
    return np.degrees(2 * np.arcsin(np.minimum(1.0, chords / 2)))


@st.composite
def _place_conditions(draw: st.DrawFn, keys: list[Key]) -> Condition:
    """What meets a place, lies in it, holds it or is near it: one of a key's, or any."""
    place = draw(st.one_of(st.sampled_from(keys).map(lambda key: key[0]), _places))
    relation = draw(st.sampled_from(["intersects", "within", "contains", "dwithin"]))
    return _meeting(relation, place, draw(st.sampled_from([1.0, 1e5])) if relation == "dwithin" else 0.0)


_part = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.5, 2.0, 2**60]), st.text(max_size=3)
)
_METRES = 111_000
"""Of a degree of latitude, about."""
_SLACK = 1.0
"""Degrees that what is read for a point may be apart from it: on a corner of cells a third of one."""
_SLACK_OF_SEVERAL = 30.0
"""The same of several, which share the spans: a good twenty where all are on such corners."""
_GLOBE = [(x, y) for y in (-80.0, -40.0, 3.0, 42.0, 79.0) for x in (-179.0, -117.0, -63.0, 2.0, 58.0, 121.0)]
_RING = [[0, 0], [4, 0], [4, 4], [0, 4], [0, 0]]
_OTHER_PLACES: list[dict[str, Any]] = [
    {"type": "LineString", "coordinates": [[10, 10], [10.2, 10.1], [11, 9]]},
    {"type": "MultiLineString", "coordinates": [[[0, 0], [1, 1]], [[4, -2], [4.5, -2]]]},
    {"type": "Polygon", "coordinates": [_RING, [[1, 1], [1, 2], [2, 2], [2, 1], [1, 1]]]},
    {
        "type": "GeometryCollection",
        "geometries": [
            {"type": "Point", "coordinates": [5, 5]},
            {"type": "LineString", "coordinates": [[6, 6], [7, 6]]},
        ],
    },
    {"type": "Polygon", "coordinates": [[[179, -1], [-179, -1], [-179, 1], [179, 1], [179, -1]]]},
    {"type": "LineString", "coordinates": [[179.5, 50], [-179.5, 51]]},
    {"type": "Point", "coordinates": [-180, 12]},
    {"type": "Polygon", "coordinates": [[[0, 85], [90, 85], [180, 85], [-90, 85], [0, 85]]]},
    {"type": "Point", "coordinates": [30, -90]},
]
"""Lines, a hole, a collection; across the antimeridian, and at the poles."""
_places = st.one_of(places(), places(), st.sampled_from(_OTHER_PLACES))
_MANY = [[at % 170, at // 170] for at in range(MAX_KEY_BYTES // 8)]
_OF_VALUES = Kit(
    columns=("a", "b"),
    keys=st.lists(st.tuples(_part, _part), min_size=1, max_size=8, unique_by=lambda one: encode_key(one)),
    whole=_equal,
    conditions=_value_conditions,
    large={"a": "x" * 3 * MAX_KEY_BYTES, "b": 1},
    no_entry_keys=(b"", b"\x30Bos", b"\xff" * 16),
    where="a = 'x' AND b = 1",
)
_OF_PLACES = Kit(
    columns=("a",),
    keys=st.lists(st.tuples(_places), min_size=1, max_size=3, unique_by=lambda one: encode_key(one)),
    whole=lambda key: _meeting("intersects", key[0]),
    conditions=_place_conditions,
    large={"a": {"type": "MultiPoint", "coordinates": _MANY}},
    no_entry_keys=(b"", b"\x30Bos"),  # eight bytes are a cell, whatever they are
    where="ST_Within(a, ST_MakeEnvelope(1, 1, 2, 2))",
)

KITS = (_OF_VALUES, _OF_PLACES)


@contextmanager
def digests_of(bits: int) -> Iterator[None]:
    """Digests of so many bits, at most eight: keys collide all the time."""
    whole = hashed.digest_of

    def cut(key: bytes) -> bytes:
        first = whole(key)[0] >> (8 - bits) << (8 - bits)
        return bytes((first,)) + bytes(hashed.DIGEST_BYTES - 1)

    with mock.patch.object(hashed, "digest_of", cut):
        yield
