"""Documents of all sorts, the indexes on them, and in plain Python what each index holds of a document."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.chaos import spatial
from tests.chaos.spatial import Asked
from tests.oracle import MISSING

Document = dict[str, Any]
Entry = tuple[list[Any], dict[str, Any]]
"""(key, included columns)."""
KEY_LIMIT = 16_000
"""Characters beyond which a key is certainly too large, or certainly not: documents stay away from it."""
NUMBERS = (int, float)
NOT_A_GEOMETRY = "not-a-geometry"


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of index.

    Attributes:
        clauses: of CREATE INDEX, behind the keyspace; `{options}` stands in WITH.
        entries: (document, id) -> its entries.
        descending: of each key part.
        slices: how many it has; 0 for any number.
        ordered: its entries come in the order of keys.
        partitions: how many it has, where the number of slices may differ by partition; else 0.
        ask: of a spatial one, makes a condition.
        skips: of a spatial one, whether a document has something in the place of a place that is none. Its
            line is in the skip ledger, as `NOT_A_GEOMETRY`; one of which that is null or not there is only
            counted.
    """

    name: str
    clauses: str
    entries: Callable[[Document, str], list[Entry]]
    descending: tuple[bool, ...] = ()
    slices: int = 0
    ordered: bool = True
    partitions: int = 0
    ask: Callable[[random.Random], Asked] | None = None
    skips: Callable[[Document], bool] | None = None


def _part(document: Document, name: str) -> Any:
    return document.get(name, MISSING)


def _fits(*parts: Any) -> bool:
    return not any(isinstance(part, str) and len(part) > KEY_LIMIT for part in parts)


def _city(document: Document, _: str) -> list[Entry]:
    city = _part(document, "city")
    return [] if city is MISSING or not _fits(city) else [([city], {})]


def _city_n(document: Document, _: str) -> list[Entry]:
    city = _part(document, "city")
    included: dict[str, Any] = {name: document[name] for name in ("note", "mood") if name in document}
    return [] if city is MISSING or not _fits(city) else [([city, _part(document, "n")], included)]


def _city_of_any_size(document: Document, _: str) -> list[Entry]:
    city = _part(document, "city")
    return [] if city is MISSING else [([city], {"n": document["n"]} if "n" in document else {})]


def _small(document: Document, _: str) -> list[Entry]:
    n = _part(document, "n")
    return [([n], {})] if isinstance(n, NUMBERS) and not isinstance(n, bool) and n < 500 else []


def _tag(document: Document, _: str) -> list[Entry]:
    tags = _part(document, "tags")
    return [([tag], {}) for tag in sorted(set(tags), key=str)] if isinstance(tags, list) else []


def _mood(document: Document, _: str) -> list[Entry]:
    return [([_part(document, "mood"), _part(document, "n")], {})]


def _by_id(document: Document, id_: str) -> list[Entry]:
    included: dict[str, Any] = {"n": document["n"]} if "n" in document else {}
    return [([document["mood"], id_], included)] if "mood" in document else []


def _placed(document: Document, _: str) -> list[Entry]:
    if "geometry" not in document or not spatial.is_geometry(document["geometry"]):
        return []
    return [([document["geometry"]], {"n": document["n"]} if "n" in document else {})]


def _not_placed(document: Document) -> bool:
    value = document.get("geometry")
    return value is not None and not spatial.is_geometry(value)


def _pointed(document: Document, _: str) -> list[Entry]:
    if not spatial.is_position(document.get("lon"), document.get("lat")):
        return []
    point = {"coordinates": [document["lon"], document["lat"]], "type": "Point"}
    return [([point], {"note": document["note"]} if "note" in document else {})]


def _not_pointed(document: Document) -> bool:
    lon, lat = document.get("lon"), document.get("lat")
    return lon is not None and lat is not None and not spatial.is_position(lon, lat)


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("city", "(city) WITH ({options})", _city),
        Shape("city_n", "(city, n DESC) INCLUDE (note, mood) WITH ({options})", _city_n, (False, True)),
        Shape("small", "(n) PARTITION BY HASH(id) WITH ({options}) WHERE n < 500", _small),
        Shape("tag", "(UNNEST(tags)) WITH ({options})", _tag),
        Shape(
            "hashed",
            "USING hash (city) INCLUDE (n) WITH ({options})",
            _city_of_any_size,
            ordered=False,
        ),
        Shape(
            "spread",
            "(city, n DESC) INCLUDE (note, mood) PARTITION BY HASH(city) SUBPARTITION BY HASH(id) "
            "SLICES (1, 3) WITH ({options})",
            _city_n,
            (False, True),
            4,
            partitions=2,
        ),
        Shape("mood", "(mood DESC, n) WITH ({options}, include_missing=true)", _mood, (True, False)),
        Shape("by_id", "(mood, id DESC) INCLUDE (n) WITH ({options})", _by_id, (False, True)),
        Shape(
            "ranged",
            "(city DESC, n) INCLUDE (note, mood) PARTITION BY RANGE(city) SPLIT AT (7, 'city2', 'city3') "
            "WITH ({options})",
            _city_n,
            (True, False),
            4,
        ),
        Shape(
            "placed",
            "USING spatial (geometry) INCLUDE (n) PARTITION BY RANGE(cell) SPLIT AT (1441168000000000000, "
            "1441169499000000000, 1441181000000000000) WITH ({options}, srid=0)",
            _placed,
            slices=4,
            ordered=False,
            ask=spatial.ask_plane,
            skips=_not_placed,
        ),
        Shape(
            "pointed",
            "USING spatial (POINT(lon, lat)) INCLUDE (note) WITH ({options})",
            _pointed,
            ordered=False,
            ask=spatial.ask_globe,
            skips=_not_pointed,
        ),
    )
}


def entries_of(raw_id: bytes, value: bytes | None) -> dict[str, list[Entry]]:
    """What each kind of index holds of one version of a document; nothing of a delete, or of what is no
    document."""
    known = _known(raw_id, value)
    if known is None:
        return {}
    return {name: found for name, shape in SHAPES.items() if (found := shape.entries(known[1], known[0]))}


def skipped_of(raw_id: bytes, value: bytes | None) -> frozenset[str]:
    """The kinds of index that must have a line in their skip ledger of one version, as `NOT_A_GEOMETRY`."""
    known = _known(raw_id, value)
    if known is None:
        return frozenset()
    kinds = ((name, shape.skips) for name, shape in SHAPES.items())
    return frozenset(name for name, skips in kinds if skips is not None and skips(known[1]))


def _known(raw_id: bytes, value: bytes | None) -> tuple[str, Document] | None:
    """The id and the document of a record, if it is one."""
    if value is None or not 1 <= len(raw_id) <= 250:
        return None
    try:
        id_ = raw_id.decode()
        document = json.loads(value.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return (id_, document) if isinstance(document, dict) else None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


GARBAGE: tuple[bytes, ...] = (
    b"{",
    b"",
    b"[1]",
    b'{"city": NaN}',
    b'{"city": "\xff"}',
    b"null",
    b'{"city": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
)
ODD_CITIES: tuple[Any, ...] = (
    7,
    7.0,
    2**53 + 1,
    -0.5,
    10**30,
    True,
    False,
    ["a"],
    {"b": 1},
    None,
    "",
    "a\0b",
    "😀",
)


class Changes:
    """Random changes of one keyspace's documents: inserts, updates, moves, deletes, re-inserts, garbage.

    Args:
        chance: the source of all choices.
        ids: how many documents there are at most.
    """

    def __init__(self, chance: random.Random, ids: int) -> None:
        self._chance = chance
        self._geometries = random.Random(ids)
        self._spoilt = random.Random(f"spoilt {ids}")
        self._ids = ids
        self._known: dict[str, Document] = {}

    def next(self) -> tuple[bytes, bytes | None]:
        """(record key, value)."""
        chance = self._chance
        x = chance.random()
        if x < 0.002:
            return chance.choice((b"", b"\xff\xfe", b"i" * 251)), b'{"city": "nowhere"}'
        id_ = f"d{chance.randrange(self._ids)}"
        if x < 0.10:
            self._known.pop(id_, None)
            return id_.encode(), None
        if x < 0.13:
            self._known.pop(id_, None)
            return id_.encode(), chance.choice(GARBAGE)
        known = self._known.get(id_)
        if known is None or x < 0.40:
            document = self._document()
        elif x < 0.55:  # what is only included, or in no index
            document = {**known, "note": f"note {chance.random()}"}
        elif x < 0.60:
            document = known  # the same again
        else:
            document = {
                **known,
                **{name: value for name, value in self._document().items() if chance.random() < 0.4},
            }
        self._known[id_] = {name: value for name, value in document.items() if name != "pad"}
        return id_.encode(), json.dumps(document).encode()

    def _document(self) -> Document:
        chance = self._chance
        x = chance.random()
        document: Document = {"n": chance.randrange(1_000), "note": f"note {chance.randrange(9)}"}
        if x < 0.08:
            document["city"] = chance.choice(ODD_CITIES)
        elif x < 0.085:
            document["city"] = "x" * 30_000  # too large for a key
        elif x > 0.15:
            document["city"] = f"city{chance.randrange(40)}"
        if chance.random() < 0.7:
            document["mood"] = chance.choice(("good", "bad", "Ω", None, 3))
        if chance.random() < 0.8:
            document["tags"] = [
                chance.choice((f"t{chance.randrange(20)}", 5)) for _ in range(chance.randrange(5))
            ]
        elif chance.random() < 0.3:
            document["tags"] = "no array"
        if chance.random() < 0.1:
            document["n"] = chance.choice((None, "many", 1e300, -1, 499.5, 10**40))
        if self._geometries.random() < 0.9:
            document["geometry"] = spatial.geometry(self._geometries)
        if self._geometries.random() < 0.9:
            document |= spatial.spoilt(self._spoilt, *spatial.position(self._geometries))
        if chance.random() < 0.0015:
            document["pad"] = "p" * chance.randrange(100_000, 600_000)
        return document
