"""Entries as indexes of each structure store them, and digests that are too short to tell keys apart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from hypothesis import strategies as st

from keytide.definition.index import IndexDefinition
from keytide.model.entry import pack_keyed_value, pack_value
from keytide.structure import hashed

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


@contextmanager
def digests_of(bits: int) -> Iterator[None]:
    """Digests of so many bits, at most eight: keys collide all the time."""
    whole = hashed.digest_of

    def cut(key: bytes) -> bytes:
        first = whole(key)[0] >> (8 - bits) << (8 - bits)
        return bytes((first,)) + bytes(hashed.DIGEST_BYTES - 1)

    with mock.patch.object(hashed, "digest_of", cut):
        yield
