"""What a spatial index makes of documents and statements: entries, what is left out and skipped, how entries
fall to slices, what may not be said; and conditions on places wherever conditions stand."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import msgspec
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st

from keytide.catalog.partitioning import Partitioning, slices_of_cells
from keytide.collation import Span, decode_key, encode_key, encode_part, key_forms, successor
from keytide.collation.layout import Json
from keytide.definition.binding import Binding
from keytide.definition.errors import InvalidStatementError
from keytide.definition.index import IndexDefinition
from keytide.definition.normal import normal_statement, ordered_statement
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.errors import InvariantViolationError
from keytide.geometry import NotAGeometryError, QueryShape, cells_of, geometry_of, point_cell
from keytide.model.entry import canonical_keys, places_of, unpack_keyed_value
from keytide.query.parse.statement import parse_query
from keytide.query.plan.plan import Candidate, Plan, Refusal, plan_on
from keytide.query.plan.suggest import suggest
from keytide.structure.place_columns import decoded_places
from keytide.structure.point_keys import point_cell_of, point_of, points_of
from keytide.structure.spatial import (
    Spatial,
    cell_key,
    firsts_of_several,
    intersected,
    partition_key_of,
    partition_keys_of,
)
from projector.core.projection import KeyspacePlan, Projected, SourceBatch, project
from streaming.core.seeding import partition_keys
from tests import geometry_costs as costs
from tests.structure_kit import as_stored, places

JFK: Json = {"type": "Point", "coordinates": [-73.778925, 40.63980103]}
BOX: Json = {"type": "Polygon", "coordinates": [[[10, 10], [12, 10], [12, 12], [10, 12], [10, 10]]]}


def definition_of(text: str) -> IndexDefinition:
    parsed = parse_statement(text)
    assert isinstance(parsed, CreateIndex)
    return parsed.definition


def projected(definition: IndexDefinition, *documents: dict[str, Any]) -> Projected:
    ids: list[bytes | None] = [b"d%d" % at for at in range(len(documents))]
    values: list[bytes | None] = [json.dumps(one).encode() for one in documents]
    count = len(documents)
    batch = SourceBatch(0, -1, 0, count, list(range(count)), ids, values, [0] * count)
    return project(batch, KeyspacePlan([("i", definition)])).indexes["i"]


def test_a_document_has_an_entry_for_each_of_its_cells() -> None:
    definition = definition_of("CREATE INDEX i ON k USING spatial (at) INCLUDE (n)")
    found = projected(definition, {"at": JFK, "n": 1}, {"at": BOX, "n": 2}, {"n": 3}, {"at": None})
    box_cells = cells_of(geometry_of(BOX, "geographic"))
    assert len(box_cells) > 1
    assert found.keys == [
        cell_key(point_cell(-73.778925, 40.63980103, "geographic")),
        *map(cell_key, box_cells),
    ]
    assert found.ordinals.tolist() == [0] + [1] * len(box_cells)
    assert found.values is not None
    for stored, value in zip(found.keys, found.values, strict=True):
        definition.structure.check(stored + b"d", value)
    assert places_of(found.values[0]) == b""
    assert places_of(found.values[1]) == b"".join(map(cell_key, box_cells))
    assert unpack_keyed_value(found.values[1]) == (b"", b'{"n":2}', encode_part(BOX))
    assert found.left_out == {"leading-key-missing": 2}
    assert found.partition_keys == [b"d0"] + [b"d1"] * len(box_cells)


def test_other_partitions_take_what_the_document_says() -> None:
    definition = definition_of("CREATE INDEX i ON k USING spatial (at) PARTITION BY HASH(city)")
    found = projected(definition, {"at": BOX, "city": "x"}, {"at": JFK})
    assert set(found.partition_keys[:-1]) == {encode_part("x")}
    assert len(found.partition_keys) == len(found.keys)


def test_what_all_entries_of_a_document_take_is_bounded() -> None:
    definition = definition_of("CREATE INDEX i ON k USING spatial (at) INCLUDE (pad)")
    found = projected(definition, {"at": BOX, "pad": "x" * 4_000_000}, {"at": JFK, "pad": "x" * 4_000_000})
    assert [(skip.ordinal, skip.reason) for skip in found.skips] == [(0, "too-many-elements")]
    assert found.ordinals.tolist() == [1]


def test_whatever_a_library_says_of_one_place_concerns_that_document() -> None:
    definition = definition_of("CREATE INDEX i ON k USING spatial (at)")
    with mock.patch("keytide.structure.spatial.cells_of", side_effect=shapely.errors.GEOSException("odd")):
        found = projected(definition, {"at": BOX}, {"at": JFK})
    assert [(skip.ordinal, skip.reason) for skip in found.skips] == [(0, "not-projectable")]
    assert found.ordinals.tolist() == [1]


A_BOX = costs.polygon([10, 10], [12, 10], [12, 12], [10, 12])
WIDE = costs.polygon([-170, 5], [-60, -5], [60, -5], [170, 5], [0, 60])


@pytest.mark.parametrize(
    ("place", "called", "does", "said"),
    [
        (WIDE, "polygonize", {"side_effect": shapely.errors.GEOSException("odd" * 200)}, "odd"),
        (WIDE, "polygonize", {"return_value": shapely.geometrycollections([])}, "bound no area"),
        (A_BOX, "is_valid", {"side_effect": shapely.errors.GEOSException("odd")}, "odd"),
        (A_BOX, "intersects", {"side_effect": shapely.errors.GEOSException("odd")}, "odd"),
    ],
)
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX i ON k USING spatial (at)",
        "CREATE INDEX i ON k (n) WHERE ST_Intersects(at, ST_MakeEnvelope(11, 11, 13, 13))",
    ],
)
def test_what_geos_gives_up_is_said_of_its_document_and_of_a_request(
    place: costs.Json, called: str, does: dict[str, Any], said: str, statement: str
) -> None:
    """It found no area of a face once, which was an error of ours for whoever asked."""
    areas = costs.together(place)
    definition = definition_of(statement)

    def ask() -> None:
        shape = geometry_of(areas, "geographic")
        cells_of(shape)
        QueryShape("intersects", shape).test(geometry_of(BOX, "geographic"))

    with mock.patch.object(shapely, called, **does):
        found = projected(definition, {"at": areas, "n": 1}, {"at": JFK, "n": 2})
        with pytest.raises(NotAGeometryError, match=said) as told:
            ask()
    assert (told.value.status, told.value.problem_type) == (422, "not-a-geometry")
    assert len(str(told.value)) < 200
    skipped = [(skip.ordinal, skip.reason, said in skip.detail) for skip in found.skips]
    # (What is no geometry meets nothing: so says WHERE of any value.)
    is_value = "WHERE" in statement and called == "is_valid"
    assert skipped == ([] if is_value else [(0, "not-a-geometry", True)])


def test_an_error_of_ours_is_not_said_of_a_geometry() -> None:
    broken = mock.patch.object(shapely, "is_valid", side_effect=AttributeError("odd"))
    with broken, pytest.raises(AttributeError):
        geometry_of(BOX, "geographic")


def test_what_is_no_geometry_is_skipped_with_what_is_wrong() -> None:
    definition = definition_of("CREATE INDEX i ON k USING spatial (at)")
    found = projected(
        definition,
        {"at": {"type": "Point", "coordinates": [200.5, 0.5]}},
        {"at": {"type": "Circle", "coordinates": [1, 2]}},
        {"at": "POINT(1 2)"},
        {"at": {"type": "Polygon", "coordinates": [[[0, 0], [1, 1], [0, 1], [1, 0], [0, 0]]]}},
        {"at": JFK},
    )
    assert {skip.reason for skip in found.skips} == {"not-a-geometry"}
    assert [skip.ordinal for skip in found.skips] == [0, 1, 2, 3]
    assert "200.5" in found.skips[0].detail
    assert "Circle" in found.skips[1].detail
    assert len(found.keys) == 1


def test_what_is_too_much_work_is_skipped() -> None:
    definition = definition_of("CREATE INDEX i ON k USING spatial (at)")
    found = projected(definition, {"at": costs.bars(200)}, {"at": JFK}, {"at": costs.aslant(5_000)})
    assert [(skip.ordinal, skip.reason) for skip in found.skips] == [
        (0, "geometry-too-complex"),
        (2, "geometry-too-complex"),
    ]
    assert all("simplify it" in skip.detail for skip in found.skips)
    assert found.ordinals.tolist() == [1]


def test_two_fields_are_a_point() -> None:
    definition = definition_of("CREATE INDEX i ON k USING spatial (POINT(lon, p.lat))")
    found = projected(
        definition,
        {"lon": -73.778925, "p": {"lat": 40.63980103}},
        {"lon": 1},
        {"lon": None, "p": {"lat": "x"}},
        {"lon": "x"},
    )
    assert found.keys == [cell_key(point_cell(-73.778925, 40.63980103, "geographic"))]
    assert not found.skips
    assert found.left_out == {"leading-key-missing": 3}


@pytest.mark.parametrize(
    ("key", "options", "told"),
    [
        ("POINT(lon, lat)", "", ["longitude '2.3'", "longitude an array", "latitude true", "longitude 200"]),
        ("POINT(lon, lat)", "WITH (srid=0)", ["x '2.3'", "x an array", "y true", None]),
        (
            "COALESCE(at, POINT(lon, lat))",
            "PARTITION BY RANGE(cell)",
            ["longitude '2.3'", "longitude an array", "latitude true", "longitude 200"],
        ),
    ],
)
def test_two_fields_that_are_no_numbers_are_skipped_with_what_is_wrong(
    key: str, options: str, told: list[str | None]
) -> None:
    definition = definition_of(f"CREATE INDEX i ON k USING spatial ({key}) {options}")
    documents: list[dict[str, Any]] = [
        {"lon": "2.3", "lat": "48.8"},
        {"lon": [1], "lat": True},
        {"lon": 1, "lat": True},
        {"lon": 200, "lat": 1},
    ]
    found = projected(definition, *documents, {"lon": 1, "lat": 2}, {"lon": 1, "lat": None})
    assert {skip.reason for skip in found.skips} == {"not-a-geometry"}
    skipped = {skip.ordinal: skip.detail for skip in found.skips}
    assert sorted(skipped) == [at for at, said in enumerate(told) if said is not None]
    for at, detail in skipped.items():
        assert str(told[at]) in detail
        alone = projected(definition, documents[at])
        assert [(skip.reason, skip.detail) for skip in alone.skips] == [("not-a-geometry", detail)]
    assert found.left_out == {"leading-key-missing": 1}
    for relation in (
        "ST_Within(POINT(lon, lat), ST_Point(1, 2))",
        "ST_Distance(POINT(lon, lat), ST_Point(1, 2)) < 5",
    ):
        where = definition_of(f"CREATE INDEX i ON k (lat) WHERE {relation}")
        assert not projected(where, *documents[:3]).skips


@pytest.mark.parametrize(
    ("form", "plain"),
    [
        ("ST_SetSRID(ST_Point(500, 600), 0)", "ST_Point(500, 600, 0)"),
        ("ST_SetSRID(ST_MakeEnvelope(0, 0, 1000, 900), 0)", "ST_MakeEnvelope(0, 0, 1000, 900, 0)"),
        (
            'ST_SetSRID(ST_GeomFromGeoJSON(\'{"type": "Point", "coordinates": [500, 600]}\'), 0)',
            "ST_Point(500, 600, 0)",
        ),
        ("ST_SetSRID(ST_SetSRID(ST_Point(500, 600), 4326), 0)", "ST_Point(500, 600, 0)"),
        ("ST_SetSRID(ST_MakeEnvelope(170, -10, -170, 10, 0), 4326)", "ST_MakeEnvelope(170, -10, -170, 10)"),
        ("ST_SetSRID(ST_MakeEnvelope(170, -10, -170, 10), 0)", "ST_MakeEnvelope(170, -10, -170, 10, 0)"),
        ("ST_SetSRID(ST_Point(500, 600, 0), 4326)", "ST_Point(500, 600)"),
        ("ST_SetSRID(ST_Point(1, 2, 7), 0)", "ST_Point(1, 2, 7)"),
        ("ST_SetSRID(ST_SetSRID(ST_Point(1, 2), 7), 0)", "ST_Point(1, 2, 7)"),
    ],
)
def test_the_system_around_a_place_is_the_one_that_it_is_read_in(form: str, plain: str) -> None:
    def read(place: str) -> Any:
        try:
            return parse_query(f"SELECT id FROM k WHERE ST_DWithin(at, {place}, 5)").where
        except InvalidStatementError as error:
            return str(error).partition(" (line ")[0]

    assert read(form) == read(plain)


@given(st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 64).map(lambda bits: max(0, (1 << bits) - 1))))
def test_a_cell_is_partitioned_by_as_its_number_is_encoded(cell: int) -> None:
    assert partition_key_of(cell_key(cell)) == encode_part(cell)


@given(st.lists(st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 64).map(lambda b: max(0, (1 << b) - 1)))))
def test_many_cells_are_partitioned_by_as_each_is(cells: list[int]) -> None:
    stored = list(map(cell_key, cells))
    assert partition_keys_of(stored) == list(map(partition_key_of, stored))


def test_cells_are_partitioned_by_their_number() -> None:
    low, high = (point_cell(*at, "geographic") for at in ((-73.0, 40.0), (11.0, 11.0)))
    first, second = sorted((low, high))
    text = f"CREATE INDEX i ON k USING spatial (at) PARTITION BY RANGE(cell) SPLIT AT ({second})"
    definition = definition_of(text)
    found = projected(definition, {"at": JFK}, {"at": BOX})
    assert found.partition_keys == [encode_part(int.from_bytes(key, "big")) for key in found.keys]
    assert partition_keys(definition, [], found.keys, []) == found.partition_keys
    rule = Partitioning.of(definition)
    for stored, by in zip(found.keys, found.partition_keys, strict=True):
        assert rule.slices_of_value(by)[0] in slices_of_cells(rule, [Span(stored, successor(stored))])
    assert slices_of_cells(rule, [Span()]) == [0, 1]
    assert slices_of_cells(rule, [Span(cell_key(first), cell_key(second))]) == [0]


_NUMBERS = st.one_of(
    st.floats(), st.floats(-180, 180), st.integers(), st.sampled_from([0.5, -0.0, 180.0, -90.25, 90, 1e300])
)
_POINTS = st.builds(
    lambda at, more: {"type": "Point", "coordinates": at, **more},
    st.lists(_NUMBERS, min_size=1, max_size=3),
    st.sampled_from([{}, {}, {}, {"bbox": [1, 2]}]),
)


@given(
    st.lists(
        st.one_of(
            _POINTS, places(), st.sampled_from([{}, [], "x", 1, {"type": "Point", "coordinates": "ab"}])
        )
    ),
    st.sampled_from([4326, 0]),
)
def test_places_of_many_documents_are_those_of_each(values: list[Any], srid: int) -> None:
    structure = Spatial(1, srid=srid)

    def of_one(value: Any) -> Any:
        try:
            key = encode_part(value)
            return key, key_forms((value,)), structure.stored([key])[0]
        except (ValueError, TypeError) as error:
            return type(error), str(error)

    found = structure.indexed_places(values)
    shown = [(type(one), str(one)) if isinstance(one, Exception) else one for one in found]
    assert shown == list(map(of_one, values))


@given(places(), st.sampled_from(["geographic", "planar"]))
def test_keys_of_points_are_read_without_decoding(place: dict[str, Any], frame: Any) -> None:
    key = encode_part(place)
    found = point_of(key)
    assert (found is not None) == (place["type"] == "Point")
    if found is not None:
        assert list(found) == [float(one) + 0.0 for one in place["coordinates"]]
        assert point_cell_of(key, frame) == point_cell(*found, frame)


@given(st.lists(st.one_of(places(), st.dictionaries(st.text(max_size=2), places(), max_size=2), st.text())))
def test_points_of_many_keys_are_those_of_each(values: list[Any]) -> None:
    keys = [encode_part(one) for one in values]
    are, xs, ys = points_of(keys)
    assert are.tolist() == [point_of(key) is not None for key in keys]
    assert list(zip(xs.tolist(), ys.tolist(), strict=True)) == [
        one for key in keys if (one := point_of(key)) is not None
    ]
    definition = definition_of("CREATE INDEX i ON k USING hash (a) INCLUDE (b)")
    stored = [as_stored(definition, [(key, b"", b'{"b":1}')])[0][1] for key in keys]
    assert canonical_keys(stored) == keys
    assert decoded_places(keys) == [
        decode_key(key, 1)[0][0] if point_of(key) is not None or is_one_ring(value) else None
        for key, value in zip(keys, values, strict=True)
    ]


def is_one_ring(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "Polygon" and len(value["coordinates"]) == 1


@given(st.lists(st.integers(0, 60), unique=True, max_size=6), st.lists(st.integers(0, 60), max_size=8))
def test_a_document_is_given_by_one_of_its_entries_and_only_if_it_is_read(
    cells: list[int], bounds: list[int]
) -> None:
    bounds = sorted(set(bounds))[: len(set(bounds)) // 2 * 2]
    spans = [(cell_key(low), cell_key(high)) for low, high in zip(bounds[::2], bounds[1::2], strict=True)]
    stored = [cell_key(one) for one in sorted(cells)]
    value = msgspec.msgpack.encode((b"", None, b"", b"".join(stored))) if len(stored) > 1 else b"\x93"
    firsts = firsts_of_several(spans)
    read = [one for one in stored if any(low <= one < high for low, high in spans)]
    assert [entry_key for entry_key, _ in firsts([(one + b"d", value) for one in read])] == [
        one + b"d" for one in read[:1]
    ]


@given(st.lists(st.integers(0, 30), max_size=8), st.lists(st.integers(0, 30), max_size=8))
def test_what_lies_in_both_of_two_lists_of_spans(one: list[int], other: list[int]) -> None:
    def spans(numbers: list[int]) -> list[Span]:
        some = sorted(set(numbers))
        found = [
            Span(bytes((low,)), bytes((high,))) for low, high in zip(some[::2], some[1::2], strict=False)
        ]
        return [*found, Span(bytes((some[-1],)))] if len(some) % 2 else found

    first, second = spans(one), spans(other)
    both = intersected(first, second)
    for number in range(32):
        key = bytes((number,))
        assert any(key in span for span in both) == (
            any(key in span for span in first) and any(key in span for span in second)
        )


def test_entries_that_are_none_of_their_place_are_an_error() -> None:
    structure = definition_of("CREATE INDEX i ON k USING spatial (at)").structure
    made = as_stored(
        definition_of("CREATE INDEX i ON k USING spatial (at)"), [(encode_key([BOX]), b"", None)]
    )
    stored, value = made[0]
    structure.check(stored + b"d", value)
    elsewhere = cell_key(point_cell(-73.0, 40.0, "geographic"))
    alone = msgspec.msgpack.encode((b"", None, encode_key([BOX])))
    nothing = msgspec.msgpack.encode((b"", None, encode_key(["x"])))
    for key, wrong in ((elsewhere, value), (stored, alone), (stored, nothing), (stored, b""), (b"x", value)):
        with pytest.raises(InvariantViolationError):
            structure.check(key if key == b"x" else key + b"d", wrong)


# --- statements -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX i ON k USING spatial (location)",
        "CREATE INDEX i ON k USING spatial (POINT(lon, lat)) INCLUDE (a) WITH (srid=0, replicas=1)",
        "CREATE INDEX i ON k USING spatial (a.b) PARTITION BY RANGE(cell) WITH (slices=3, srid=4326)",
        "CREATE INDEX i ON k USING spatial (a) PARTITION BY RANGE(cell) SPLIT AT (13835058055282163712)",
        "CREATE INDEX i ON k (n) WHERE ST_DWithin(a, ST_Point(-73.5, 40), 5000) AND NOT ST_Within(ST_SetSRID("
        "ST_MakeEnvelope(1, 2, 3, 4), 0), a)",
        "CREATE INDEX i ON k (ST_Distance(a, ST_Point(1, 2, 0)), POINT(x, y) DESC)",
        "CREATE INDEX i ON k (n) WHERE ST_Intersects(a, ST_GeomFromGeoJSON("
        '\'{"type": "LineString", "coordinates": [[1.0, 2], [3, 4, 5]]}\'))',
    ],
)
def test_the_normal_form_gives_the_index_back(statement: str) -> None:
    definition = definition_of(statement)
    again = definition_of(normal_statement(definition))
    assert msgspec.structs.replace(again, statement=definition.statement) == definition
    assert normal_statement(again) == normal_statement(definition)
    kept = msgspec.json.decode(msgspec.json.encode(definition), type=IndexDefinition)
    assert kept == definition


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("CREATE UNIQUE INDEX i ON k USING spatial (a)", "is not UNIQUE"),
        ("CREATE INDEX i ON k USING spatial (a, b)", "the key of a spatial index is one place"),
        ("CREATE INDEX i ON k USING spatial (a DESC)", "not DESC"),
        ("CREATE INDEX i ON k USING spatial (UNNEST(a))", "UNNEST makes an entry of each element"),
        ("CREATE INDEX i ON k USING spatial (a) WITH (include_missing=true)", "lies in no cell"),
        ("CREATE INDEX i ON k USING spatial (a) WITH (srid=3857)", "there is no system 3857"),
        ("CREATE INDEX i ON k (a) WITH (srid=4326)", "srid goes with USING spatial"),
        ("CREATE INDEX i ON k USING spatial (a) PARTITION BY HASH(cell)", "a hash has no neighbours"),
        (
            "CREATE INDEX i ON k USING spatial (a) PARTITION BY HASH(a)",
            "a place is no value",
        ),
        (
            "CREATE INDEX i ON k USING spatial (a) PARTITION BY RANGE(a)",
            "a place is no value",
        ),
        ("CREATE INDEX i ON k USING spatial (a) PARTITION BY RANGE(cell) SPLIT AT ('x')", "a whole number"),
        ("CREATE INDEX i ON k (ST_Within(a, ST_Point(1, 2)))", "a condition cannot stand here"),
        ("CREATE INDEX i ON k (ST_Point(1, 2))", "must say something about the document"),
        ("CREATE INDEX i ON k (ST_MakeEnvelope(1, 2, 3, 4))", "says a place, which is compared"),
        ("CREATE INDEX i ON k (n) WHERE ST_Within(a, b)", "nothing that is a place by itself"),
        (
            "CREATE INDEX i ON k (n) WHERE ST_Within(ST_Point(1, 2), ST_Point(1, 2))",
            "nothing of the document",
        ),
        ("CREATE INDEX i ON k (n) WHERE ST_Within(a)", "takes a path and a place"),
        ("CREATE INDEX i ON k (n) WHERE ST_DWithin(a, ST_Point(1, 2))", "how many metres"),
        ("CREATE INDEX i ON k (n) WHERE ST_DWithin(a, ST_Point(1, 2), -5)", "a distance is not negative"),
        ("CREATE INDEX i ON k (n) WHERE ST_DWithin(a, ST_Point(1, 2), n)", "a distance is a number"),
        ("CREATE INDEX i ON k (n) WHERE ST_Within(a, ST_Point(1, 91))", "this is no geometry: latitude 91"),
        ("CREATE INDEX i ON k (n) WHERE ST_Within(a, ST_Point(1))", "something is missing here"),
        ("CREATE INDEX i ON k (n) WHERE ST_Within(a, ST_Point(1, 2, 0, 4))", "a longitude and a latitude"),
        (
            "CREATE INDEX i ON k (n) WHERE ST_Within(a, ST_MakeEnvelope(1, 2, 3))",
            "west, south, east and north",
        ),
        ("CREATE INDEX i ON k (n) WHERE ST_Within(a, ST_Point(1, 2, 3))", "there is no system 3 here"),
        ("CREATE INDEX i ON k (n) WHERE ST_Within(a, ST_GeomFromGeoJSON('{'))", "this is no JSON"),
        ("CREATE INDEX i ON k (n) WHERE ST_Within(a, ST_GeomFromGeoJSON(5))", "in quotes"),
        ("CREATE INDEX i ON k (n) WHERE ST_Touches(a, ST_Point(1, 2))", "there is no function ST_TOUCHES"),
    ],
)
def test_statements_that_make_no_sense_are_refused(statement: str, reason: str) -> None:
    with pytest.raises(InvalidStatementError, match=reason):
        parse_statement(statement)


@pytest.mark.parametrize(
    ("partitions", "slices"),
    [
        ("SPLIT AT (5) WITH (srid=0)", 2),
        ("SUBPARTITION BY HASH(id) SLICES 2 WITH (partitions=3)", 6),
        ("SPLIT AT (5) SUBPARTITION BY HASH(id) SLICES (2, 1)", 3),
        ("WITH (slices=4, auto_split=true)", 4),
    ],
)
def test_a_btree_in_its_place_is_a_btree(partitions: str, slices: int) -> None:
    definition = definition_of(
        f"CREATE INDEX i ON k USING spatial (a) INCLUDE (n) PARTITION BY RANGE(cell) {partitions}"
    )
    made = definition_of(ordered_statement(definition, {"i"}))
    assert (made.using, made.name, made.slices) == ("btree", "i_btree", slices)
    assert made.partitioned_by_id


# --- plans ------------------------------------------------------------------------------------------------


def planned(sql: str, statement: str) -> Plan | Refusal:
    definition = definition_of(statement)
    return plan_on(parse_query(sql), Candidate(definition.name, definition))


SPATIAL = "CREATE INDEX i ON k USING spatial (a) INCLUDE (n)"
PLANE = f"{SPATIAL} WITH (srid=0)"


@pytest.mark.parametrize(
    ("where", "geographic", "planar"),
    [
        ("ST_Within(a, ST_MakeEnvelope(1, 2, 3, 4))", True, False),
        ("ST_Within(a, ST_MakeEnvelope(1, 2, 3, 4, 0))", False, True),
        ("n = 5 AND ST_DWithin(ST_Point(1, 2), a, 5)", True, False),
        ("n = 5 OR ST_DWithin(ST_Point(1, 2), a, 5)", False, False),
        ("ST_Contains(a, ST_Point(1, 2)) OR ST_Contains(a, ST_Point(3, 4))", True, False),
        ("ST_Distance(a, ST_Point(1, 2)) > 5", True, False),
        ("NOT ST_Within(a, ST_MakeEnvelope(1, 2, 3, 4))", True, False),
        ("ST_Within(b, ST_MakeEnvelope(1, 2, 3, 4))", False, False),
        (f"ST_Distance(a, ST_Point(1, 2)) <= 1{'0' * 400}", True, False),
        ("n = 5", False, False),
        ("a IS NOT NULL", False, False),
    ],
)
def test_an_index_serves_conditions_on_its_place_in_its_system(
    where: str, geographic: bool, planar: bool
) -> None:
    sql = f"SELECT id FROM k WHERE {where}"
    assert isinstance(planned(sql, SPATIAL), Plan) == geographic
    assert isinstance(planned(sql, PLANE), Plan) == planar
    btree = "CREATE INDEX i ON k (n) INCLUDE (a, b) WITH (include_missing=true)"
    assert isinstance(planned(sql, btree), Plan), "any index that has the place answers, testing every row"


def test_what_is_read_is_what_can_meet_the_condition() -> None:
    here = "ST_DWithin(a, ST_Point(1, 2), 1000)"
    alone = planned(f"SELECT id FROM k WHERE {here}", SPATIAL)
    both = planned(f"SELECT id FROM k WHERE {here} AND ST_DWithin(a, ST_Point(1.001, 2), 1000)", SPATIAL)
    either = planned(f"SELECT id FROM k WHERE {here} OR ST_DWithin(a, ST_Point(50, 2), 1000)", SPATIAL)
    apart = planned(f"SELECT id FROM k WHERE {here} AND ST_DWithin(a, ST_Point(50, 2), 1000)", SPATIAL)
    nearest = planned("SELECT id FROM k ORDER BY ST_Distance(a, ST_Point(1, 2)) LIMIT 5", SPATIAL)
    for plan in (alone, both, either, nearest):
        assert isinstance(plan, Plan)
        assert plan.reading.spans
    assert isinstance(apart, Plan)
    place = cell_key(point_cell(1.0005, 2.0, "geographic"))
    for plan in (alone, both, either):
        assert isinstance(plan, Plan)
        assert any(place in span for span in plan.reading.spans)
        assert plan.filter is not None
        assert plan.reading.bounded
    assert isinstance(nearest, Plan)
    assert nearest.nearest is not None
    assert nearest.filter is None
    assert nearest.entries < 100


def test_what_is_ordered_by_a_distance_has_one() -> None:
    sql = "SELECT id FROM k ORDER BY ST_Distance(a, ST_Point(1, 2)) LIMIT 5"
    plan = planned(sql, "CREATE INDEX i ON k (n) INCLUDE (a) WITH (include_missing=true)")
    assert isinstance(plan, Plan)
    assert plan.filter is not None, "documents without a place are left out, whichever index answers"
    for rest, does in (("DESC LIMIT 5", "not the farthest"), ("", "with a LIMIT only")):
        refused = planned(f"SELECT id FROM k ORDER BY ST_Distance(a, ST_Point(1, 2)) {rest}", SPATIAL)
        assert isinstance(refused, Refusal)
        assert refused.reason.endswith(f"it has no order, and finds the nearest, {does}")


@pytest.mark.parametrize(
    ("sql", "statement"),
    [
        (
            "SELECT name FROM k WHERE ST_Within(a, ST_MakeEnvelope(1, 2, 3, 4)) AND n > 5",
            "CREATE INDEX by_a ON k USING spatial (a) INCLUDE (name, n)",
        ),
        (
            "SELECT id FROM k ORDER BY ST_Distance(POINT(x, y), ST_Point(1, 2, 0)) LIMIT 5",
            "CREATE INDEX by_point_x_y ON k USING spatial (POINT(x, y)) WITH (srid=0)",
        ),
    ],
)
def test_the_index_that_would_serve_is_told(sql: str, statement: str) -> None:
    assert suggest(parse_query(sql)) == statement


def test_conditions_and_distances_of_what_is_no_place_are_unknown() -> None:
    definition = definition_of(
        "CREATE INDEX i ON k (a) WHERE ST_DWithin(a, ST_Point(1, 2), 5) "
        "AND ST_Distance(a, ST_Point(1, 2)) < 6"
    )
    binding = Binding(definition)
    assert definition.where is not None
    test = binding.test(definition.where)
    point: Json = {"type": "Point", "coordinates": [1, 2.00001]}
    assert test((point,), "d", {}) is True
    others: tuple[Json, ...] = (
        {"type": "Point", "coordinates": [2, 2]},
        {"type": "Point", "coordinates": [1, 3]},
    )
    for other in others:
        assert test((other,), "d", {}) is False
    nothings: tuple[Json, ...] = (None, 5, "x", {}, {"type": "Point"}, [1, 2])
    for nothing in nothings:
        assert test((nothing,), "d", {}) is None
    found = projected(definition, {"a": point}, {"a": 5}, {"a": {"type": "Point", "coordinates": [2, 2]}})
    assert found.ordinals.tolist() == [0]
    assert found.left_out == {"where-not-true": 2}


def test_what_speaks_of_places_is_known_to_do_so() -> None:
    for text, needs in (
        ("CREATE INDEX i ON k USING spatial (a)", True),
        ("CREATE INDEX i ON k (POINT(x, y))", True),
        ("CREATE INDEX i ON k (n) WHERE ST_DWithin(a, ST_Point(1, 2), 5)", True),
        ("CREATE INDEX i ON k USING hash (a)", False),
        ("CREATE INDEX i ON k (n) WHERE LOWER(a) = 'x'", False),
    ):
        assert definition_of(text).speaks_of_places == needs
