"""The Spark data source without Spark: options, conditions as spans, columns; and what Spark calls, against
real scan endpoints over HTTP, through the pickles that Spark makes."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import DateType, DoubleType, IntegerType, LongType, StringType, StructField, StructType

import pyspark_keytide
from indexer.scan.plan.selection import Shape, selection_of
from indexer.scan.request.request import Question, SpanRequest
from keytide.client import Client
from keytide.collation import MISSING, Value, encode_key
from keytide.definition.binding import Binding
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.errors import CallerError, KeytideError, RetryableError
from keytide.process.clock import now_ms
from keytide.query.parse.statement import parse_query
from keytide.settings.settings import Settings, load_settings
from streaming.source import columns
from streaming.source.core import where
from streaming.source.core.options import OptionError, Options
from tests.unit.scan_world import Doc, World
from tests.unit.test_api import serving

ROOT = Path(__file__).resolve().parents[2]
URL = "http://127.0.0.1:1"
CITIES = ["Aachen", "Bonn", "Boston", "Zürich"]


def struct(ddl: str) -> StructType:
    """A schema; Spark's own `fromDDL` needs a session."""
    named = (one.rsplit(" ", 1) for one in ddl.split(", "))
    return StructType([StructField(name, TYPES[kind]) for name, kind in named])


TYPES = {
    "STRING": StringType(),
    "BIGINT": LongType(),
    "INT": IntegerType(),
    "DOUBLE": DoubleType(),
    "DATE": DateType(),
}


# --- options ----------------------------------------------------------------------------------------------


def test_options_are_read_whatever_their_case() -> None:
    given = {
        "URL": f"{URL}/, http://127.0.0.1:2",
        "Index": "by_city",
        "low": '["A", 3]',
        "inclusion": "low",
        "at_least": '{"0": 7}',
        "max_staleness_ms": "500",
        "timeout_ms": " 70 ",
        "types": '{"n": "json"}',
        "consistency": "stable",
    }
    read = Options.read(given)
    assert read.urls == (f"{URL}/", "http://127.0.0.1:2")
    assert read.index == "by_city"
    assert read.selection == {"low": ["A", 3], "inclusion": "low"}
    assert read.moment == {"at_least": {"0": 7}, "max_staleness_ms": 500, "timeout_ms": 70}
    assert read.waiting == {"timeout_ms": 70}
    assert read.types == {"n": "json"}
    assert read.urls_for(1) == ["http://127.0.0.1:2", f"{URL}/"]
    assert read.urls_for(2) == [f"{URL}/", "http://127.0.0.1:2"]


def test_load_may_name_the_index() -> None:
    assert Options.read({"url": URL, "path": "by_city"}).index == "by_city"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"index": "i"}, "url"),
        ({"url": URL}, "name the index"),
        ({"url": URL, "index": "i", "filter": "x"}, "no option filter; there are at, at_least, "),
        ({"url": URL, "index": "i", "equals": "Boston"}, r"equals takes a JSON list.*not 'Boston'"),
        ({"url": URL, "index": "i", "types": '["n"]'}, "types takes a JSON object"),
        ({"url": URL, "index": "i", "lease_s": "1m"}, "lease_s takes a whole number"),
        ({"url": URL, "index": "i", "lease_s": "-1"}, "lease_s takes a whole number"),
        ({"url": URL, "index": "i", "consistency": "tip"}, "one snapshot"),
        ({"url": URL, "index": "i", "where": "a = 1", "equals": "[1]"}, "either `where` or `equals`"),
        ({"url": URL, "index": "i", "at": "t", "lease_s": "5"}, "leave out `lease_s`"),
        ({"url": URL, "index": "i", "at": "t", "at_least": "{}"}, "leave out `at_least`"),
    ],
)
def test_options_that_cannot_be_say_so(given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        Options.read(given)


def test_the_system_of_a_place_is_an_option() -> None:
    given = {"url": URL, "index": "i", "within": "[1, 2, 3, 4]"}
    assert Options.read({**given, "srid": "0"}).selection == {"within": [1, 2, 3, 4], "srid": 0}
    with pytest.raises(OptionError, match="srid takes a whole number"):
        Options.read({**given, "srid": "plane"})
    with pytest.raises(OptionError, match="either `where` or `srid`"):
        Options.read({"url": URL, "index": "i", "where": "n = 1", "srid": "0"})


def test_secrets_of_options_are_not_shown() -> None:
    given = {"url": URL, "index": "i", "token": "s3cret", "session": "seen", "types": "{}"}
    shown = repr(Options.read(given)) + repr(Options.read({"url": URL, "index": "i", "at": "held"}, "other"))
    assert not any(word in shown for word in ("s3cret", "seen", "held", "other"))
    assert Options.read(given, "other").token == "s3cret"
    assert Options.read({"url": URL, "index": "i"}, "other").token == "other"


# --- conditions -------------------------------------------------------------------------------------------


neither = {"inclusion": "neither"}


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("a = 'x'", [{"equals": ["x"]}]),
        ("a = 'x' AND n > 3", [{"low": ["x", 3], "high": ["x", ""], **neither}]),
        ("'x' = a AND 3 >= n", [{"low": ["x", True], "high": ["x", 3], "inclusion": "high"}]),
        ("a BETWEEN 'b' AND 'd'", [{"low": ["b"], "high": ["d"], "inclusion": "both"}]),
        ("a < 'b'", [{"low": [""], "high": ["b"], "inclusion": "low"}]),
        ("a >= TRUE", [{"low": [True], "high": [True], "inclusion": "both"}]),
        ("a > 1 AND a > 2.5 AND a >= 2.5 AND a < 9 AND a <= 9", [{"low": [2.5], "high": [9], **neither}]),
        ("a LIKE 'Bo%'", [{"equals": [], "prefix": "Bo"}]),
        ("a = 1 AND n BETWEEN 3 AND 3", [{"equals": [1, 3]}]),
        ("a >= 3 AND a <= 3.0 AND n > 1 AND n >= 2 AND n <= 2", [{"equals": [3, 2]}]),
        ("a BETWEEN 3 AND 3 AND a < 3", []),
        (r"a = 1 AND n LIKE 'B\%o\_%'", [{"equals": [1], "prefix": "B%o_"}]),
        ("a IN ('x', 'y') AND n = 1", [{"equals": ["x", 1]}, {"equals": ["y", 1]}]),
        ("a = 'x' AND n IN (1, 2, 3) AND n >= 2 AND n <> 7 IS NOT NULL", None),
        ("a = 'x' AND n IN (1, 2, 3) AND n >= 2", [{"equals": ["x", 2]}, {"equals": ["x", 3]}]),
        ("(a = 1 OR a = 2) AND LOWER(b) = 'q' AND n = 0", [{"equals": [1, 0, "q"]}, {"equals": [2, 0, "q"]}]),
        ("NOT a <> 'x'", [{"equals": ["x"]}]),
        ("a = 'x' AND a = 'y'", []),
        ("a < 3 AND a > 'x'", []),
        ("a = 'x' AND FALSE", []),
    ],
)  # fmt: skip
def test_a_condition_on_key_parts_becomes_spans(text: str, spans: list[Any] | None) -> None:
    if spans is None:
        with pytest.raises(KeytideError):
            where.spans_of(text, ["a", "n", "LOWER(b)"])
    else:
        assert where.spans_of(text, ["a", "n", "LOWER(b)"]) == spans


def test_a_condition_that_always_holds_selects_everything() -> None:
    assert where.spans_of("1 = 1", ["a"]) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("n = 1", "by = or IN what a is"),
        ("a > 1 AND n = 1", "by = or IN what a is.*filter by n in Spark"),
        ("a <> 1", "cannot have a <> 1"),
        ("b = 1", "cannot have b = 1.*of a, n"),
        ("a + 1 = 2", "cannot have"),
        ("a = n", "cannot have a = n"),
        ("a IS NULL", "cannot have a IS NULL"),
        ("a LIKE '%x'", "cannot have"),
        ("a LIKE 'x_%'", "cannot have"),
        ("a LIKE 'x%' AND a > 'y'", "beside a LIKE"),
        ("a = 1 ORDER BY a", "a condition on key parts only"),
        ("a = 1 LIMIT 3", "a condition on key parts only"),
        ("a = 1 GROUP BY a", "GROUP"),
        ("1 = ANY(a)", "a condition on key parts only"),
        ("a =", "something is missing"),
        ("a = 1; DROP INDEX x", ";"),
    ],
)
def test_what_is_no_condition_on_leading_key_parts_is_refused(text: str, told: str) -> None:
    with pytest.raises(CallerError, match=told):
        where.spans_of(text, ["a", "n"])


HERE: dict[str, Any] = {"type": "Point", "coordinates": [7.0, 50.0]}


@pytest.mark.parametrize(
    ("text", "selection"),
    [
        ("ST_Within(at, ST_Point(7, 50))", {"within": HERE, "srid": 4326}),
        ("ST_Contains(at, ST_Point(7, 50))", {"contains": HERE, "srid": 4326}),
        ("ST_Within(ST_Point(7, 50), at)", {"contains": HERE, "srid": 4326}),
        ("ST_Intersects(at, ST_Point(7, 50, 0))", {"intersects": HERE, "srid": 0}),
        ("ST_DWithin(at, ST_Point(7, 50), 90)", {"near": {"point": HERE, "metres": 90.0}, "srid": 4326}),
        ("ST_Distance(at, ST_Point(7, 50)) <= 90", {"near": {"point": HERE, "metres": 90.0}, "srid": 4326}),
    ],
)
def test_a_condition_on_a_place_becomes_that_of_a_scan(text: str, selection: dict[str, Any]) -> None:
    assert where.selection_of(text, ["at"]) == selection


@pytest.mark.parametrize(
    "text",
    [
        "ST_Within(home, ST_Point(7, 50))",
        "NOT ST_Within(at, ST_Point(7, 50))",
        "ST_Within(at, ST_Point(7, 50)) AND ST_Contains(at, ST_Point(7, 50))",
        "ST_Within(at, ST_Point(7, 50)) OR n = 1",
        "ST_Distance(at, ST_Point(7, 50)) > 90",
        "ST_Distance(at, ST_Point(7, 50)) <= TRUE",
        f"ST_Distance(at, ST_Point(7, 50)) <= 1{'0' * 400}",
    ],
)
def test_other_conditions_on_places_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="one condition on a place, alone, of a spatial index"):
        where.selection_of(text, ["at"])


def test_conditions_are_bounded() -> None:
    hundred = ", ".join(map(str, range(100)))
    for text in (
        f"a IN ({hundred}) AND n IN ({hundred})",
        " AND ".join(f"(a = {n} OR n = {n})" for n in range(12)),
        " OR ".join(f"(a = {n} AND n IN ({hundred}))" for n in range(11)),
    ):
        with pytest.raises(OptionError, match="more than 1000"):
            where.spans_of(text, ["a", "n"])


VALUES: list[Value] = [
    MISSING,
    None,
    False,
    True,
    -2,
    0,
    1,
    1.5,
    2,
    10**20,
    "",
    "B",
    "Bo",
    "Bp",
    "b",
    [],
    [1],
    {"x": 1},
]


LITERALS = ["TRUE", "FALSE", "-2", "0", "1", "1.5", "2", "'B'", "'Bo'", "''"]


def _last(chance: random.Random, part: str) -> str:
    """A random condition on the last key part that there is one on."""
    one, other = chance.choice(LITERALS), chance.choice(LITERALS)
    return chance.choice(
        [
            f"{part} {chance.choice(['=', '<', '<=', '>', '>='])} {one}",
            f"{part} BETWEEN {one} AND {other}",
            f"{part} > {one} AND {part} <= {other}",
            f"{part} LIKE 'B%'",
        ]
    )


def _condition(chance: random.Random) -> str:
    """A random condition that spans can tell."""
    found = []
    for _ in range(chance.randint(1, 3)):
        one, other = chance.choice(LITERALS), chance.choice(LITERALS)
        leading = chance.choice([f"a = {one}", f"a IN ({one}, {other})"])
        found.append(_last(chance, "a") if chance.random() < 0.4 else f"{leading} AND {_last(chance, 'n')}")
    return " OR ".join(f"({one})" for one in found)


@pytest.mark.parametrize("directions", ["a, n", "a DESC, n", "a, n DESC", "a DESC, n DESC"])
def test_spans_hold_exactly_the_keys_for_which_a_condition_is_true(directions: str) -> None:
    """The condition by its meaning in WHERE, the spans by what nodes make of them."""
    statement = parse_statement(f"CREATE INDEX i ON t ({directions})")
    assert isinstance(statement, CreateIndex)
    definition = statement.definition
    shape = Shape.of(definition)
    chance = random.Random(directions)
    for _ in range(150):
        text = _condition(chance)
        condition = parse_query(f"SELECT id FROM t WHERE {text}").where
        assert condition is not None
        test = Binding(definition).test(condition)
        spans = where.spans_of(text, ["a", "n"])
        assert spans is not None
        wanted = Question(spans=[SpanRequest(**one) for one in spans]) if spans else None
        inside = selection_of(wanted, shape, 1_000).spans if wanted else ()
        for a in VALUES:
            for n in VALUES:
                key = encode_key([a, n], definition.descending)
                held = any(key in one for one in inside)
                assert held is (test([a, n], "d", {}) is True), (text, a, n)


# --- columns ----------------------------------------------------------------------------------------------

STREAM = [
    columns.IndexColumn("city", "text", "key", 0),
    columns.IndexColumn("n", "bigint", "key", 1),
    columns.IndexColumn("id", "text", "id"),
    columns.IndexColumn("x", "json", "include"),
    columns.IndexColumn("ok", "boolean", "include"),
]


def test_a_dataframe_has_the_columns_of_the_index() -> None:
    struct = columns.struct_of(STREAM)
    assert struct.simpleString() == "struct<city:string,n:bigint,id:string,x:string,ok:boolean>"
    assert [field.name for field in struct if not field.nullable] == ["id"]
    assert columns.chosen(STREAM, struct) == STREAM
    assert columns.key_names(list(reversed(STREAM))) == ["city", "n"]


def test_a_schema_chooses_columns_and_types() -> None:
    chosen = columns.chosen(STREAM, struct("ok STRING, n INT, city STRING"))
    assert [(one.name, one.kind) for one in chosen] == [("ok", "json"), ("n", "bigint"), ("city", "text")]
    assert columns.groups_of(chosen) == ["key", "include"]
    assert columns.types_of(chosen) == {"ok": "json", "n": "bigint", "city": "text"}
    assert columns.groups_of([]) == ["id"]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("town STRING", "no column town; it has city"),
        ("n DATE", "n cannot be date"),
        ("id BIGINT", "as string"),
    ],
)
def test_a_schema_that_the_index_has_not(schema: str, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        columns.chosen(STREAM, struct(schema))


def test_an_integer_that_its_column_has_no_room_for_is_an_error() -> None:
    schema = struct("n INT")
    batch = pa.RecordBatch.from_pydict({"id": ["a", "b"], "n": [1, None]})
    arranged = columns.arranged(batch, schema)
    assert arranged.to_pydict() == {"n": [1, None]}
    assert arranged.schema.field("n").type == pa.int32()
    with pytest.raises(OptionError, match=r"column n.*bigint"):
        columns.arranged(pa.RecordBatch.from_pydict({"n": [2**31]}), schema)


# --- against endpoints ------------------------------------------------------------------------------------


@dataclass
class Served:
    """Two nodes, whose slices are in memory."""

    world: World
    urls: list[str]

    def commit(self, number: int, *people: Doc) -> None:
        self.world.commit(number, {"by_city": people})

    def source(self, **options: str) -> DataSource:
        """What Spark has after `load()`: it keeps the source as a pickle."""
        given = {"url": ",".join(self.urls), "index": "by_city", **options}
        source = pyspark_keytide.DefaultSource(given)
        kept = pickle.loads(pickle.dumps(source))
        assert isinstance(kept, DataSource)
        return kept

    def holds(self) -> int:
        """How many snapshots of slices are held for a while longer."""
        now = now_ms()
        leases = [until for snapshot in self.world.held() for until in snapshot.leases.values()]
        return sum(until > now for until in leases)


def person(at: int, city: Any = None, **include: Any) -> Doc:
    document = json.dumps({"name": f"name{at}", **include}).encode()
    return Doc([CITIES[at % 4] if city is None else city, at], f"u{at:04}", document)


PEOPLE = [person(at) for at in range(400)]


@pytest.fixture
def served() -> Iterator[Served]:
    yield from _served(load_settings(), CITIES_AND_NUMBERS.format("btree"))


CITIES_AND_NUMBERS = "CREATE INDEX by_city ON users USING {} (city, n) INCLUDE (name, more) WITH (slices=3)"


def _served(settings: Settings, statement: str, documents: Sequence[Doc] = PEOPLE) -> Iterator[Served]:
    world = World(statement, node_count=2)
    first, second = world.views.values()
    with ExitStack() as stack:
        urls = [stack.enter_context(serving(view, settings)) for view in (first, second)]
        first.urls = second.urls = dict(zip(world.views, urls, strict=True))
        made = Served(world, urls)
        made.commit(5, *documents)
        yield made


def rows(source: DataSource, ddl: str | None = None) -> list[tuple[Any, ...]]:
    """All rows of a source, sorted, read as Spark does: each partition with a reader of its own."""
    schema = struct(ddl) if ddl else source.schema()
    assert isinstance(schema, StructType)
    reader = pickle.dumps(source.reader(schema))
    found: list[tuple[Any, ...]] = []
    for partition in pickle.loads(reader).partitions() or [None]:
        for batch in pickle.loads(reader).read(pickle.loads(pickle.dumps(partition))):
            assert batch.schema.names == schema.fieldNames()
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return sorted(found, key=repr)


def test_spark_finds_the_source_by_its_name() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    assert "pyspark_keytide*" in packages["include"]
    assert any(module.name == "pyspark_keytide" for module in iter_modules([str(ROOT)]))
    assert pyspark_keytide.DefaultSource.name() == "keytide"


def test_looking_for_data_sources_imports_next_to_nothing() -> None:
    """Spark imports the module in every session, to see what it holds."""
    asked = (
        "import sys, pyspark_keytide; print([m for m in ('httpx', 'sqlglot', 'pyarrow') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", asked], cwd=ROOT, capture_output=True, check=True)
    assert found.stdout.decode().strip() == "[]"


def test_all_slices_together_are_the_index(served: Served) -> None:
    source = served.source()
    schema = source.schema()
    assert isinstance(schema, StructType)
    assert schema.simpleString() == "struct<city:string,n:bigint,id:string,name:string,more:string>"
    expected = [(doc.key[0], doc.key[1], doc.id, f"name{doc.key[1]}", None) for doc in PEOPLE]
    assert rows(source) == sorted(expected, key=repr)
    assert len(source.reader(schema).partitions()) == 3


def test_a_source_keeps_its_snapshot(served: Served) -> None:
    source = served.source()
    schema = source.schema()
    assert isinstance(schema, StructType)
    before = rows(source, "id STRING")
    for number in range(6, 12):
        served.commit(number, person(number))
    assert rows(source, "id STRING") == before
    assert rows(served.source(), "id STRING") == [("u0011",)]


def from_bonn_9(city: str, n: int) -> bool:
    return city == "Boston" or (city == "Bonn" and n >= 9)


@pytest.mark.parametrize(
    ("options", "expected", "slices"),
    [
        ({"equals": '["Bonn"]'}, lambda city, n: city == "Bonn", 1),
        ({"where": "city = 'Bonn'"}, lambda city, n: city == "Bonn", 1),
        ({"where": "city = 'Bonn' AND n >= 9 AND n < 20"}, lambda city, n: city == "Bonn" and 9 <= n < 20, 1),
        ({"where": "city LIKE 'Bo%'"}, lambda city, n: city.startswith("Bo"), 3),
        ({"low": '["Bonn", 9]', "high": '["Boston"]'}, from_bonn_9, 3),
        ({"spans": '[{"prefix": "Z"}, {"equals": ["Bonn", 1]}]'}, lambda c, n: c == "Zürich" or n == 1, 3),
        ({"where": "city = 'Bonn' AND n = 3 AND n = 4"}, lambda city, n: False, 0),
        ({"where": "TRUE"}, lambda city, n: True, 3),
    ],
)  # fmt: skip
def test_selections_are_pushed_down(
    served: Served, options: dict[str, str], expected: Callable[[str, int], bool], slices: int
) -> None:
    source = served.source(**options)
    schema = source.schema()
    assert isinstance(schema, StructType)
    wanted = [doc.id for doc in PEOPLE if expected(*doc.key)]  # type: ignore[arg-type]
    assert [id_ for (id_,) in rows(source, "id STRING")] == wanted
    assert len(source.reader(schema).partitions()) <= slices


@pytest.fixture
def hashed() -> Iterator[Served]:
    yield from _served(load_settings(), CITIES_AND_NUMBERS.format("hash"))


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"where": "city = 'Bonn' AND n = 5"}, ["u0005"]),
        ({"where": "city IN ('Bonn', 'Boston') AND n IN (5, 6, 7)"}, ["u0005", "u0006"]),
        ({"where": "(city = 'Bonn' AND n = 5) OR (city = 'Aachen' AND n = 8)"}, ["u0005", "u0008"]),
        ({"where": "city = 'Bonn' AND n = 6"}, []),
        ({"equals": '["Bonn", 5]'}, ["u0005"]),
        ({"spans": '[{"equals": ["Bonn", 5]}, {"equals": ["Aachen", 8]}]'}, ["u0005", "u0008"]),
        ({}, [doc.id for doc in PEOPLE]),
    ],
)
def test_whole_keys_of_a_hash_index_are_read(hashed: Served, options: dict[str, str], ids: list[str]) -> None:
    assert [id_ for (id_,) in rows(hashed.source(**options), "id STRING")] == ids


STOPS: dict[str, tuple[float, float]] = {
    f"s{x}{y}": (7 + x / 10, 50 + y / 10) for x in range(8) for y in range(8)
}


@pytest.fixture(params=["PARTITION BY RANGE(cell) SPLIT AT (5100000000000000000)", "PARTITION BY HASH(id)"])
def placed(request: pytest.FixtureRequest) -> Iterator[Served]:
    at = "CREATE INDEX by_city ON users USING spatial (at) INCLUDE (name)"
    stops = [
        Doc([{"type": "Point", "coordinates": list(at)}], id_, b'{"name":"x"}') for id_, at in STOPS.items()
    ]
    yield from _served(load_settings(), f"{at} {request.param}", stops)


@pytest.mark.parametrize(
    "options",
    [
        {"where": "ST_Within(at, ST_MakeEnvelope(7.05, 50.05, 7.35, 50.25))"},
        {"where": "ST_Intersects(ST_MakeEnvelope(7.05, 50.05, 7.35, 50.25), at)"},
        {"within": "[7.05, 50.05, 7.35, 50.25]"},
        {"within": "[7.05, 50.05, 7.35, 50.25]", "srid": "4326"},
    ],
)
def test_a_condition_on_a_place_is_read_by_all_tasks_and_each_document_once(
    placed: Served, options: dict[str, str]
) -> None:
    wanted = sorted(id_ for id_, (x, y) in STOPS.items() if 7.05 < x < 7.35 and 50.05 < y < 50.25)
    assert [id_ for (id_,) in rows(placed.source(**options), "id STRING")] == wanted


@pytest.mark.parametrize(
    "options",
    [
        {"where": "ST_DWithin(at, ST_Point(7.2, 50.2), 12000)"},
        {"near": '{"point": [7.2, 50.2], "metres": 12000}'},
    ],
)
def test_what_lies_around_a_place_is_read(placed: Served, options: dict[str, str]) -> None:
    """A tenth of a degree is 11.1 km to the north there, and 7.1 km to the east."""
    assert [id_ for (id_,) in rows(placed.source(**options), "id STRING")] == [
        *("s12", "s21", "s22", "s23", "s32"),
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"where": "city = 'Bonn' AND n > 5"},
        {"where": "city >= 'Bonn'"},
        {"where": "city LIKE 'Bo%'"},
        {"where": "city = 'Bonn'"},
        {"low": '["Bonn"]'},
    ],
)
def test_what_a_hash_index_does_not_answer_is_refused_with_one_that_does(
    hashed: Served, options: dict[str, str]
) -> None:
    with pytest.raises(CallerError, match="CREATE INDEX by_city_btree ON users USING btree") as refused:
        rows(hashed.source(**options))
    assert refused.value.problem_type == "index-not-ordered"
    parsed = parse_statement(refused.value.message[refused.value.message.index("CREATE INDEX") :])
    assert isinstance(parsed, CreateIndex)
    assert parsed.definition.using == "btree"


def test_a_join_by_key_reads_the_keys_of_the_other_side(hashed: Served) -> None:
    """As docs/spark.md has it: the keys as `spans`, and the rows that they find joined to the other side."""
    orders = [("Bonn", 5, 10.0), ("Aachen", 8, 7.5), ("Bonn", 5, 1.0), ("nowhere", 1, 3.0)]
    keys = dict.fromkeys((city, n) for city, n, _ in orders)
    spans = json.dumps([{"equals": list(key)} for key in keys])
    people = {
        (city, n): name
        for city, n, name in rows(hashed.source(spans=spans), "city STRING, n BIGINT, name STRING")
    }
    joined = [(people[city, n], amount) for city, n, amount in orders if (city, n) in people]
    assert joined == [("name5", 10.0), ("name8", 7.5), ("name5", 1.0)]


def test_only_the_groups_of_columns_that_are_needed_are_asked_for(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    scan = Client.scan

    def noted(self: Client, index: str, **request: Any) -> Any:
        asked.append(request.get("columns"))
        return scan(self, index, **request)

    source = served.source()
    monkeypatch.setattr(Client, "scan", noted)
    assert len(rows(source, "n BIGINT")) == 400
    assert len(rows(source, "name STRING, id STRING")) == 400
    assert asked == [["key"]] * 3 + [["id", "include"]] * 3


def test_columns_of_several_types_are_json(served: Served) -> None:
    served.commit(6, person(1), person(2, 7), Doc([None, 3], "u3"), person(4, more=[1]), person(5, more="x"))
    source = served.source()
    found = rows(source, "id STRING, city STRING, more STRING")
    assert found == [
        ("u0001", '"Bonn"', None),
        ("u0002", "7", None),
        ("u0004", '"Aachen"', "[1]"),
        ("u0005", '"Bonn"', '"x"'),
        ("u3", "null", None),
    ]


def test_types_are_given_by_option_or_schema(served: Served) -> None:
    assert rows(served.source(where="city = 'Bonn' AND n = 1", types='{"n": "double"}'))[0][1] == 1.0
    assert rows(served.source(where="city = 'Bonn' AND n = 1"), "n STRING") == [("1",)]
    assert rows(served.source(where="city = 'Bonn' AND n = 1"), "n DOUBLE") == [(1.0,)]
    with pytest.raises(CallerError, match="no column m") as caught:
        served.source(types='{"m": "text"}')
    assert caught.value.problem_type == "unknown-column"


def test_a_value_that_does_not_fit_its_column_names_the_option(served: Served) -> None:
    source = served.source()
    with pytest.raises(CallerError, match=r"column city is bigint.*option `types`") as caught:
        rows(source, "city BIGINT")
    assert caught.value.problem_type == "type-changed"


def test_a_snapshot_that_is_gone_names_the_option(served: Served) -> None:
    source = served.source(lease_s="1")
    for view in served.world.views.values():
        for one in view.slices.values():
            one.restart()
    served.commit(6, *PEOPLE)
    with pytest.raises(CallerError, match=r"no longer.*load it again.*`lease_s`") as caught:
        rows(source)
    assert caught.value.problem_type == "snapshot-gone"


def test_a_held_snapshot_of_ones_own(served: Served) -> None:
    with Client(served.urls) as client, client.snapshot("by_city") as held:
        source = served.source(at=held.at)
        served.commit(6, person(6))
        served.commit(7, person(7))
        served.commit(8, person(8))
        assert len(rows(source)) == 400
        assert len(rows(served.source(at=held.at, equals='["Bonn"]'))) == 100
    with pytest.raises(CallerError, match="load it again"):
        rows(source)


def test_an_index_without_rows(served: Served) -> None:
    served.commit(6)
    assert rows(served.source()) == []


@pytest.mark.parametrize(
    ("options", "kind", "told"),
    [
        ({"index": "by_town"}, "unknown-index", "by_town.*Option `index`"),
        ({"lease_s": "99999"}, "", "lease_s 99999"),
        ({"at": "forged"}, "invalid-token", "token"),
        ({"equals": '["a", 1, 2]'}, "", "3 key parts were given, the index has 2"),
        ({"prefix": "Bo", "inclusion": "low"}, "invalid-request", "`inclusion` is of `low` and `high`"),
    ],
)
def test_what_nodes_refuse_is_told_at_once(
    served: Served, options: dict[str, str], kind: str, told: str
) -> None:
    with pytest.raises(CallerError, match=told) as caught:
        served.source(**options)
    assert not kind or caught.value.problem_type == kind


@pytest.mark.parametrize(
    "options",
    [{"where": "name = 'x'"}, {"where": "city ="}, {"types": '{"town": "json"}'}, {"equals": "[[[0"}],
)
def test_a_load_that_fails_gives_its_snapshot_back(served: Served, options: dict[str, str]) -> None:
    with pytest.raises(KeytideError):
        served.source(**options)
    assert served.holds() == 0
    served.source()
    assert served.holds() == 3, "that of a load lasts"
    with Client(served.urls) as client, client.snapshot("by_city", lease_s=60) as held:
        before = served.holds()
        with pytest.raises(KeytideError):
            served.source(at=held.at, where="name = 'x'")
        assert served.holds() == before, "whoever took it gives it back"


def test_an_index_that_is_not_ready(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.source.opening.RETRIES", 0)
    served.world.create("CREATE INDEX late ON users (n)", state="BUILDING")
    with pytest.raises(RetryableError, match="late") as caught:
        served.source(index="late", timeout_ms="100")
    assert caught.value.problem_type == "index-not-ready"


def test_a_node_that_is_away_is_passed_over(served: Served) -> None:
    assert len(rows(served.source(url=",".join(["http://127.0.0.1:9", *served.urls])))) == 400


def test_the_token_comes_from_the_option_or_the_drivers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(security={"tokens": {"s3cret": ["read"]}})
    for served in _served(settings, CITIES_AND_NUMBERS.format("btree")):
        with pytest.raises(CallerError, match="Option `token`") as caught:
            served.source()
        assert caught.value.problem_type == "not-allowed"
        assert len(rows(served.source(token="s3cret"))) == 400
        monkeypatch.setenv("KEYTIDE_TOKEN", "s3cret")
        source = served.source()
        monkeypatch.delenv("KEYTIDE_TOKEN")
        assert len(rows(source)) == 400
