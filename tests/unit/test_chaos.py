"""The chaos driver's own eyes: every kind of difference is seen, and nothing is seen where there is none."""

from __future__ import annotations

import json
import random
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError

from keytide.cli.admin import Admin
from keytide.client import Client
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.errors import CallerError, KeytideError, RetryableError
from keytide.geometry import Frame, NotAGeometryError, QueryShape, distance, envelope, geometry_of, point
from keytide.settings.settings import load_settings
from projector.core.projection import KeyspacePlan, SourceBatch, project
from tests import share
from tests.chaos import driver, reading, scene, spatial
from tests.chaos.reading import Reader
from tests.chaos.run import Run, StoppedError, Target
from tests.chaos.scene import Scene
from tests.chaos.shapes import NOT_A_GEOMETRY, SHAPES, Changes, Shape, entries_of, skipped_of
from tests.chaos.spatial import NO_COORDINATES, NO_GEOMETRIES
from tests.chaos.truncating import Cut, batches, cut
from tests.chaos.truth import Lines, Row, Selection, difference, ledger_difference, row_text
from tests.oracle import MISSING, compare
from tests.unit.scan_world import Doc, World
from tests.unit.test_api import serving

SHAPE = SHAPES["city_n"]
ALL = Selection()


def row(key: list[Any], id_: str, **include: Any) -> Row:
    return Row(key, id_, row_text(key, include))


ROWS = [
    row([None, 5], "a"),
    row(["Bonn", 9], "b", note="x"),
    row(["Bonn", 9], "c"),
    row(["Bonn", MISSING], "d"),
    row(["Köln", 1], "e", mood=None),
]


def test_what_is_right_is_right() -> None:
    assert difference(ROWS, ROWS, SHAPE, ALL) == []
    assert difference(ROWS[::-1], ROWS, SHAPE, ALL) == []
    assert difference(ROWS, ROWS[::-1], SHAPE, Selection(reverse=True)) == []
    assert difference(ROWS, ROWS[:2], SHAPE, Selection(limit=2)) == []
    bonn = Selection(keeps=lambda part: compare(part, "Bonn") == 0)
    assert difference(ROWS, ROWS[1:4], SHAPE, bonn) == []


@pytest.mark.parametrize(
    ("found", "selection", "word"),
    [
        (ROWS[:-1], ALL, "missing: ('e'"),
        ([*ROWS, row(["Ulm", 1], "f")], ALL, "extra: ('f'"),
        ([*ROWS[:4], row(["Köln", 2], "e", mood=None)], ALL, "extra: ('e'"),
        ([*ROWS[:4], row(["Köln", 1], "e")], ALL, "extra: ('e'"),
        ([*ROWS[:4], row(["Köln", 1.0], "e", mood=None)], ALL, "extra: ('e'"),
        ([*ROWS[:3], row(["Bonn", None], "d"), ROWS[4]], ALL, "extra: ('d'"),
        ([*ROWS[:3], ROWS[2], *ROWS[3:]], ALL, "rows come twice"),
        ([ROWS[0], ROWS[2], ROWS[1], *ROWS[3:]], ALL, "out of order"),
        ([*ROWS[:1], ROWS[3], *ROWS[1:3], ROWS[4]], ALL, "out of order"),
        (ROWS, Selection(reverse=True), "out of order"),
        (ROWS[1:3], Selection(limit=2), "missing: ('a'"),
        (ROWS[:1], Selection(limit=2), "1 rows, 2 expected"),
        (ROWS, Selection(keeps=lambda part: compare(part, "Bonn") == 0), "extra: ('a'"),
    ],
)
def test_every_kind_of_difference_is_seen(found: list[Row], selection: Selection, word: str) -> None:
    assert word in "\n".join(difference(ROWS, found, SHAPE, selection))


def test_of_what_has_no_order_none_is_asked() -> None:
    hashed, rows = SHAPES["hashed"], [row(["Bonn"], "a"), row(["Bonn"], "b"), row(["Ulm"], "c")]
    assert difference(rows, rows[::-1], hashed, ALL) == []
    assert difference(rows, rows[1:], hashed, Selection(limit=2)) == []
    assert "missing: ('a'" in "\n".join(difference(rows, rows[1:], hashed, ALL))


def test_the_nearest_are_compared_by_how_far_away_they_are() -> None:
    placed = SHAPES["placed"]
    far = (4, 1, 2, 1, 9)
    rows = [row([{"coordinates": [x, 0.5], "type": "Point"}], f"d{at}") for at, x in enumerate(far)]
    nearest = Selection(limit=3, distance=lambda one: float(one["coordinates"][0]))
    right = [rows[1], rows[3], rows[2]]
    assert difference(rows, right, placed, nearest) == []
    for wrong in ([rows[1], rows[2], rows[0]], right[:2], right[::-1], [*right[:2], rows[1]]):
        assert difference(rows, wrong, placed, nearest)
    other = row([{"coordinates": [2, 0.5], "type": "Point"}], "other")
    assert "extra" in "\n".join(difference(rows, [*right[:2], other], placed, nearest))


@pytest.mark.parametrize(("name", "frame"), [("placed", "planar"), ("pointed", "geographic")])
def test_plain_arithmetic_finds_what_the_geometry_finds(name: str, frame: Frame) -> None:
    """Neither knows of the other: what they agree on is right."""
    chance, ask = random.Random(3), SHAPES[name].ask
    assert ask is not None
    changes = Changes(random.Random(5), 10_000)
    documents = [entries_of(*changes.next()).get(name, []) for _ in range(share.examples(3_600))]
    values = [key[0] for entries in documents for key, _ in entries]
    known = [geometry_of(value, frame) for value in values]
    met: Counter[str] = Counter()
    for _ in range(150):
        asked = ask(chance)
        ((relation, given),) = asked.request.items()
        if asked.distance is not None:
            x, y = given["point"]
            there = point(x, y, frame)
            for value, one in zip(values[:50], known, strict=False):
                if (away := asked.distance(value)) < 1.9e7:
                    assert away == pytest.approx(distance(one, there), abs=1e-2)
        if asked.keeps is None:
            continue
        match relation, given:
            case "near", {"point": [x, y], "metres": metres}:
                shape = QueryShape("dwithin", point(x, y, frame), float(metres))
            case "contains", [x, y]:
                shape = QueryShape("contains", point(x, y, frame))
            case _, [west, south, east, north]:
                within = relation == "within"
                shape = QueryShape(
                    "within" if within else "intersects", envelope(west, south, east, north, frame)
                )
        found = [shape.test(one) for one in known]
        assert found == [asked.keeps(value) for value in values], asked.request
        met[relation] += sum(found)
    assert set(met) == ({"within", "intersects", "contains", "near"} if frame == "planar" else {"near"})
    assert all(met.values())


def test_what_is_no_geometry_is_none() -> None:
    for value in NO_GEOMETRIES:
        with pytest.raises(NotAGeometryError):
            geometry_of(value, "planar")


def test_documents_are_of_all_sorts_and_the_same_for_the_same_seed() -> None:
    first, second = (Changes(random.Random(3), 200) for _ in range(2))
    made = [first.next() for _ in range(5_000)]
    assert made == [second.next() for _ in range(5_000)]
    held = [entries_of(key, value) for key, value in made]
    assert {name for entries in held for name in entries} == set(SHAPES)
    assert sum(value is None for _, value in made) > 100
    assert sum(value is not None and not entries for (_, value), entries in zip(made, held, strict=True)) > 50
    assert any(len(value or b"") > 100_000 for _, value in made)


def test_a_run_of_one_keyspace_has_an_index_of_each_kind() -> None:
    clauses = [SHAPES[name].clauses for name in driver.PERMANENT[0]]
    assert any("USING" not in one and "SUBPARTITION" not in one for one in clauses)
    for kind in ("USING hash", "USING spatial", "SUBPARTITION BY HASH(id)"):
        assert any(kind in one for one in clauses), kind
    assert {name for names in driver.PERMANENT for name in names} == set(SHAPES)


def test_of_a_hash_one_key_is_asked_or_several() -> None:
    reader, value = Reader(Run("http://127.0.0.1:1", "127.0.0.1:1", "keytide", 7), 1), "city3"
    asked = [reader._selection("pages", SHAPES["hashed"]) for _ in range(200)]
    several = [one for one in asked if "spans" in one.request]
    assert several
    assert any("equals" in one.request for one in asked)
    for one in several:
        named = {"equals": [value]} in one.request["spans"]
        assert one.keeps is not None
        assert one.keeps(value) == named


def test_what_the_shapes_hold() -> None:
    value = {"city": "Bonn", "n": 7, "tags": ["a", "b", "a"], "note": "x"}
    entries = entries_of(b"d1", json.dumps(value).encode())
    assert entries["city_n"] == [(["Bonn", 7], {"note": "x"})]
    assert [key for key, _ in entries["tag"]] == [["a"], ["b"]]
    assert entries["mood"] == [([MISSING, 7], {})]
    assert "by_id" not in entries
    assert entries_of(b"d1", b'{"city": "' + b"x" * 20_000 + b'"}').keys() == {"hashed", "mood"}
    for key, bad in ((b"d1", None), (b"", b"{}"), (b"d1", b"[1]"), (b"d1", b'{"n": NaN}'), (b"\xff", b"{}")):
        assert entries_of(key, bad) == {}


def _batch(base: int, count: int, epoch: int) -> bytes:
    body = struct.pack(">ibIhi", epoch, 2, 0, 0, count - 1) + bytes(30 + count)
    return struct.pack(">qi", base, len(body)) + body


def test_a_log_is_cut_between_batches(tmp_path: Path) -> None:
    folder = tmp_path / "topic-1"
    folder.mkdir()
    segment = folder / "00000000000000000000.log"
    whole = [_batch(0, 10, 0), _batch(10, 5, 0), _batch(15, 1, 3)]
    segment.write_bytes(b"".join(whole) + bytes(100))
    (folder / "00000000000000000000.index").touch()
    assert [found[1:] for found in batches(segment)] == [(0, 10), (10, 15), (15, 16)]
    assert cut(tmp_path, "topic", 1, 3) == Cut(end=10, had=16, epoch=3)
    assert segment.read_bytes() == whole[0]
    assert [file.name for file in folder.iterdir()] == [segment.name]
    with pytest.raises(ValueError, match="too many to lose"):
        cut(tmp_path, "topic", 1, 5)


def test_the_first_problem_ends_a_run_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> None:
        raise RetryableError("nobody there")

    monkeypatch.setattr(Admin, "call", away)
    run = Run("http://127.0.0.1:1", "127.0.0.1:1", "keytide", 7)
    assert run.report(None) == []
    with pytest.raises(StoppedError):
        run.admin("GET", "/v1/nodes", limit=0.0)
    run.fail("something else")
    assert run.problem is not None
    assert "nobody there" in run.problem.what
    assert "seed 7" in run.report(None)[0]
    assert run.summary()["differences"] == 1


# --- what waits, and what is wrong at once ------------------------------------------------------------------

TARGET = Target("by_city", "people", SHAPE)


class Answers(Reader):
    """A reader to whom a node gives these answers, in place of a scan; None is one that is right."""

    def __init__(self, run: Run, *answers: KeytideError | str | None) -> None:
        super().__init__(run, 1)
        self.left = list(answers)

    def check(self, client: Client, target: Target, **demands: Any) -> None:
        answer = self.left.pop(0)
        if isinstance(answer, str):
            self._run.fail(answer)
        elif answer is not None:
            raise answer


def looking(monkeypatch: pytest.MonkeyPatch, *answers: KeytideError | str | None) -> Scene:
    """A scene, without a cluster, whose one index shows everything by now."""
    made = Scene.__new__(Scene)
    made.run = Run("http://127.0.0.1:1", "127.0.0.1:1", "keytide", 7)
    made.run.offer(TARGET)
    made._reader = Answers(made.run, *answers)
    monkeypatch.setattr(made.run, "nodes", lambda: ["http://127.0.0.1:1"])
    monkeypatch.setattr(made, "told", lambda: str(made.run.problem))
    monkeypatch.setattr(scene, "fresh_again", lambda *_: 1.5)
    return made


def test_a_node_that_cannot_answer_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    away = RetryableError("away"), RetryableError("late", status=504)
    made = looking(monkeypatch, *away, None)
    assert made.look("after all") == 1.5
    with pytest.raises(RetryableError, match="away"):
        looking(monkeypatch, *away, None).look("after all", 0.0)


def test_a_reader_takes_all_that_it_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page may have fewer rows than its limit, for it may end by its bytes."""
    world = World("CREATE INDEX by_city ON users (city, n)", node_count=1)
    world.commit(5, {"by_city": [Doc(["Bonn", n], f"u{n:03}") for n in range(100)]})
    run = Run("http://127.0.0.1:1", "127.0.0.1:1", "keytide", 7)
    found: list[int] = []
    monkeypatch.setattr(
        Reader, "_compare", lambda _reader, _target, _chosen, rows, *_: found.append(len(rows))
    )
    with (
        serving(world.views["n0"], load_settings(scan={"max_page_bytes": 1_024})) as url,
        Client(url) as client,
    ):
        assert len(client.page("by_city", limit=70).rows) < 70
        for limit in (1, 20, 70, None):
            Reader(run, 1)._scan(client, TARGET, "scan", Selection(limit=limit))
    assert found == [1, 20, 70, 100]


def test_what_is_wrong_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CallerError, match="no such index"):
        looking(monkeypatch, CallerError("no such index"), None).look("after all")
    with pytest.raises(AssertionError, match="a row is missing"):
        looking(monkeypatch, "a row is missing", None).look("after all")


@pytest.mark.parametrize("error", [KafkaTimeoutError(), AssertionError(), OSError()])
def test_a_reader_whose_producer_gives_up_makes_another(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []

    class Producer:
        def __init__(self, **_: Any) -> None:
            made.append(self)

        def send(self, *_: Any, **__: Any) -> None:
            raise error

        def close(self, timeout: float) -> None:
            raise error

    run = Run("http://127.0.0.1:1", "127.0.0.1:1", "keytide", 7)
    monkeypatch.setattr(run, "pause", lambda _: None)
    monkeypatch.setattr(reading, "KafkaProducer", Producer)
    reader = Reader(run, 1)
    with Client("http://127.0.0.1:1") as client:
        for _ in range(2):
            reader._own_write(client, TARGET)
    assert len(made) == 2
    assert run.problem is None


# --- the skip ledger ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["placed", "pointed"])
def test_the_ledger_must_hold_what_projectors_put_there(name: str) -> None:
    """What is null or not there is counted; what is no place has a line; all else has an entry."""
    statement = parse_statement(f"CREATE INDEX x ON ks {SHAPES[name].clauses.format(options='replicas=0')}")
    assert isinstance(statement, CreateIndex)
    changes = Changes(random.Random(11), 10_000)
    records = [changes.next() for _ in range(3_000)]
    ids, values = [key for key, _ in records], [value for _, value in records]
    places = list(range(len(records)))
    batch = SourceBatch(0, 0, 0, len(records), places, [*ids], values, [0] * len(records))
    found = project(batch, KeyspacePlan([("x", statement.definition)])).indexes["x"]
    lines = {one.offset for one in found.skips if one.reason == NOT_A_GEOMETRY}
    assert lines == {at for at in places if name in skipped_of(*records[at])}
    held = [at for at in places if name in entries_of(*records[at])]
    others = {one.offset for one in found.skips} - lines
    gone = sum(value is None for at, value in enumerate(values) if at not in others)
    counted = len(records) - len(lines) - len(others) - len(held) - gone
    assert found.left_out["leading-key-missing"] == counted
    assert min(len(lines), counted, len(held)) > 20


def test_wrong_points_are_wrong_in_every_way() -> None:
    chance = random.Random(2)
    points = [spatial.spoilt(chance, 7.5, 50.5) for _ in range(20_000)]
    for name in ("lon", "lat"):
        assert {repr(one[name]) for one in points if name in one} >= set(map(repr, (*NO_COORDINATES, None)))
        assert any(name not in one for one in points)
    assert sum(spatial.is_position(one.get("lon"), one.get("lat")) for one in points) > 17_000


def test_what_is_wrong_with_a_ledger_is_said() -> None:
    must, may = {(0, 5), (1, 7)}, {(0, 2), (0, 5), (1, 7)}
    assert ledger_difference(must, may, must) == ledger_difference(must, may, may) == []
    assert ledger_difference(must, may, {(0, 5)}) == ["not in the ledger: offset 7 of partition 1"]
    assert ledger_difference(must, may, {*may, (1, 8)}) == [
        "in the ledger without reason: offset 8 of partition 1"
    ]


def test_a_ledger_that_stays_wrong_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Page by page, until it is right or the time is over."""
    asked: list[str] = []

    def call(self: Admin, method: str, path: str, *, limit: int, page: str | None) -> Any:
        asked.append(f"{path}?limit={limit}" + (f"&page={page}" if page else ""))
        lines = [
            {"partition": 0, "offset": 5, "reason": NOT_A_GEOMETRY},
            {"partition": 0, "offset": 6, "reason": "bad-id"},
        ]
        more = page is None
        return {"lines": lines if more else [{**lines[0], "partition": 1}], "page": "0:6" if more else None}

    class Source:
        def ledger(self, shape: Shape) -> tuple[Lines, Lines]:
            return must, must

    monkeypatch.setattr(Admin, "call", call)
    for must in ({(0, 5), (1, 5)}, {(0, 5)}):
        run = Run("http://127.0.0.1:1", "127.0.0.1:1", "keytide", 7)
        run.truths["ks"] = Source()  # type: ignore[assignment]
        Reader(run, 1).check_ledger(Target("x", "ks", SHAPES["pointed"]), 0.0)
        assert (run.problem is None) == (len(must) == 2)
    assert asked[1] == f"{asked[0]}&page=0:6"
