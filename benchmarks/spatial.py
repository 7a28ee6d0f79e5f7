"""Spatial indexes beside PostGIS, in one run: boxes of about a hundred rows and the ten nearest, of points
and of polygons, with the same answers; and the rate of indexing points beside that of a btree.

PostGIS has geographies under GiST, asked by one connection with prepared statements; Keytide is asked by one
bare HTTP client. Places are spread evenly over `AREA`; document `n` is the same in every run.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import psycopg

from benchmarks.documents import PARTITIONS, document_id, load
from benchmarks.harness import Bench, Result, machine_state, percentiles, say
from benchmarks.latency import connect, timed_scan
from benchmarks.peers.postgresql import postgres_programs, postgres_server
from benchmarks.throughput import MILLION
from benchmarks.watching import calm
from keytide.errors import invariant
from keytide.geometry import point_cell

AREA: Final = (-10.0, 36.0, 30.0, 60.0)
"""West, south, east, north."""
POLYGONS: Final = 100_000
CORNERS: Final = 20
RADIUS: Final = 0.03
"""Degrees, of a polygon."""
ROWS: Final = 100
NEAREST: Final = 10
QUESTIONS: Final = 500
SLICES: Final = 8
IDS: Final = {"columns": ["id"]}
"""Both are asked for the ids, and how far away the nearest are."""
_STEP: Final = 0.6180339887498949

Box = tuple[float, float, float, float]


def spatial(documents: int = MILLION) -> Result:
    """Both, on one node: a tenth as many polygons as points."""
    result = Result("spatial", machine=machine_state())
    polygons = max(1, documents // 10)
    result.sizes = {
        "points": documents,
        "polygons": polygons,
        "corners": CORNERS,
        "slices": SLICES,
        "nodes": 1,
        "questions": QUESTIONS,
        "rows": ROWS,
    }
    with Bench(nodes=1) as bench:
        rate = _indexed(bench, "numbers", "by_n", f"(n) WITH (slices={SLICES})", documents, point_document)
        result.figures["btree_documents_per_s"] = rate
        say(f"btree: {rate:,} documents/s")
        bench.admin.call("DELETE", "/v1/indexes/by_n")
        kinds: tuple[tuple[str, int, Callable[[int, int], bytes]], ...]
        kinds = (("points", documents, point_document), ("polygons", polygons, polygon_document))
        for kind, count, make in kinds:
            splits = ", ".join(map(str, _splits(count)))
            key = f"USING spatial (at) PARTITION BY RANGE(cell) SPLIT AT ({splits})"
            rate = _indexed(bench, kind, f"{kind}_at", key, count, make)
            result.figures[f"{kind}_documents_per_s"] = rate
            say(f"{kind}: {rate:,} documents/s")
        asked = {kind: list(_questions(count)) for kind, count, _ in kinds}
        calm()
        answers = {kind: _ask(bench, result, kind, asked[kind]) for kind in asked}
        bench.pause()
        try:
            _postgis(result, asked, answers, {kind: (count, make) for kind, count, make in kinds})
        finally:
            bench.resume()
    return result


def _indexed(
    bench: Bench, topic: str, name: str, key: str, count: int, make: Callable[[int, int], bytes]
) -> float:
    """Documents per second of one index, which follows a topic that is there already."""
    bench.make_topic(topic, PARTITIONS)
    bench.create_index(f"CREATE INDEX {name} ON {topic} {key}")
    bench.pause()
    load(bench.bootstrap, topic, range(count), make=make)
    ends = bench.ends(topic)
    began = time.monotonic()
    bench.resume()
    bench.wait_indexed(name, ends)
    return round(count / (time.monotonic() - began))


def place_of(number: int) -> tuple[float, float]:
    """Where document `number` lies: evenly spread over the area, near those before it nowhere."""
    west, south, east, north = AREA
    x = (number * _STEP) % 1.0
    y = (number * 0.7548776662466927 + 0.5) % 1.0
    return round(west + x * (east - west), 6), round(south + y * (north - south), 6)


def point_document(number: int, version: int) -> bytes:
    x, y = place_of(number)
    return b'{"at":{"type":"Point","coordinates":[%r,%r]},"n":%d}' % (x, y, number)


def ring_of(number: int) -> list[list[float]]:
    """A regular polygon around the place of a document."""
    x, y = place_of(number)
    angles = [2 * math.pi * corner / CORNERS for corner in range(CORNERS)]
    ring = [[round(x + RADIUS * math.cos(one), 6), round(y + RADIUS * math.sin(one), 6)] for one in angles]
    return [*ring, ring[0]]


def polygon_document(number: int, version: int) -> bytes:
    return json.dumps({"at": {"type": "Polygon", "coordinates": [ring_of(number)]}, "n": number}).encode()


def _splits(count: int) -> list[int]:
    """Cells that part the places evenly."""
    cells = sorted(point_cell(*place_of(number), "geographic") for number in range(min(count, 20_000)))
    return [cells[len(cells) * number // SLICES] for number in range(1, SLICES)]


def _questions(count: int) -> Iterator[tuple[Box, tuple[float, float]]]:
    """Boxes with about `ROWS` of so many places, each with its middle."""
    west, south, east, north = AREA
    size = math.sqrt(ROWS * (east - west) * (north - south) / count)
    chance = random.Random(5)
    for _ in range(QUESTIONS):
        x, y = chance.uniform(west, east - size), chance.uniform(south, north - size)
        box = (round(x, 5), round(y, 5), round(x + size, 5), round(y + size, 5))
        yield box, (round(x + size / 2, 5), round(y + size / 2, 5))


def _ask(
    bench: Bench, result: Result, kind: str, asked: Sequence[tuple[Box, tuple[float, float]]]
) -> list[tuple[set[str], list[str]]]:
    """The ids in each box, and the nearest to each middle."""
    connection = connect(bench.cluster.node_urls[0])
    index = f"{kind}_at"
    for box, middle in asked[:50]:  # warm-up
        timed_scan(connection, index, {"intersects": list(box), "limit": 1_000, **IDS})
        timed_scan(connection, index, {"near": {"point": list(middle), "limit": NEAREST}, **IDS})
    boxes, nearest, found = [], [], []
    for box, middle in asked:
        took, rows = timed_scan(connection, index, {"intersects": list(box), "limit": 1_000, **IDS})
        boxes.append(took)
        ten, near = timed_scan(connection, index, {"near": {"point": list(middle), "limit": NEAREST}, **IDS})
        nearest.append(ten)
        found.append(({row["id"] for row in rows}, [row["id"] for row in near]))
    connection.close()
    for name, samples in (("box", boxes), ("nearest", nearest)):
        for figure, value in percentiles(samples).items():
            result.figures[f"{kind}_{name}_{figure}"] = value
        say(f"{kind}, {name}: p50 {result.figures[f'{kind}_{name}_p50_ms']} ms")
    return found


# --- PostGIS ------------------------------------------------------------------------------------------------

_BOX: Final = (
    "SELECT id FROM {kind} WHERE ST_Intersects(at, ST_MakeEnvelope(%s, %s, %s, %s, 4326)::geography)"
)
_NEAREST: Final = (
    "SELECT id, at <-> ST_Point(%s, %s, 4326)::geography AS away FROM {kind} ORDER BY away LIMIT {limit}"
)

_EXACT: Final = (
    "SELECT id FROM (SELECT id, at FROM {kind} "
    "ORDER BY at <-> ST_Point(%s, %s, 4326)::geography LIMIT {candidates}) AS nearby "
    "ORDER BY ST_Distance(at, ST_Point(%s, %s, 4326)::geography) LIMIT {limit}"
)
"""What is nearest on the spheroid, as Keytide answers. `<->` goes by a sphere, so that some of its answers
have another order, and a few another last one. Both are timed."""
_CANDIDATES: Final = NEAREST + 1
"""The fewest with which all answers are the same."""


def _postgis(
    result: Result,
    asked: dict[str, list[tuple[Box, tuple[float, float]]]],
    answers: dict[str, list[tuple[set[str], list[str]]]],
    kinds: dict[str, tuple[int, Callable[[int, int], bytes]]],
) -> None:
    """Ask PostGIS the same, and compare; or say why that could not be."""
    programs = postgres_programs()
    if programs is None:
        result.notes.append("PostGIS could not be started: PostgreSQL's programs are not installed")
        return
    with postgres_server(programs) as address, psycopg.connect(address, autocommit=True) as connection:
        try:
            connection.execute("CREATE EXTENSION postgis")
        except psycopg.Error as error:
            result.notes.append(f"PostGIS could not be started: {str(error).splitlines()[0]}")
            return
        row = connection.execute("SELECT postgis_lib_version()").fetchone()
        result.sizes["postgis"] = row[0] if row else ""
        for kind, (count, make) in kinds.items():
            _fill(connection, kind, count, make)
            calm()
            _compare(connection, result, kind, asked[kind], answers[kind])


def _fill(
    connection: psycopg.Connection[Any], kind: str, count: int, make: Callable[[int, int], bytes]
) -> None:
    connection.execute(f"CREATE TABLE {kind} (id text NOT NULL, at geography NOT NULL)")
    with connection.cursor() as cursor, cursor.copy(f"COPY {kind} (id, at) FROM STDIN") as rows:
        for number in range(count):
            rows.write_row((document_id(number).decode(), _text_of(make(number, 0))))
    connection.execute(f"CREATE INDEX {kind}_at ON {kind} USING gist (at)")
    connection.execute(f"VACUUM ANALYZE {kind}")


def _text_of(document: bytes) -> str:
    """A document's place, as PostGIS reads it."""
    place = json.loads(document)["at"]
    positions = [place["coordinates"]] if place["type"] == "Point" else place["coordinates"][0]
    written = ", ".join(f"{x!r} {y!r}" for x, y in positions)
    return f"POINT({written})" if place["type"] == "Point" else f"POLYGON(({written}))"


def _compare(
    connection: psycopg.Connection[Any],
    result: Result,
    kind: str,
    asked: list[tuple[Box, tuple[float, float]]],
    answers: list[tuple[set[str], list[str]]],
) -> None:
    box_sql, near_sql = _BOX.format(kind=kind), _NEAREST.format(kind=kind, limit=NEAREST)
    exact_sql = _EXACT.format(kind=kind, limit=NEAREST, candidates=_CANDIDATES)
    boxes: list[float] = []
    nearest: list[float] = []
    exact: list[float] = []
    rows_found = differing = by_sphere = 0
    for round_ in (asked[:50], asked):
        for samples in (boxes, nearest, exact):
            samples.clear()
        for at, (box, middle) in enumerate(round_):
            began = time.perf_counter()
            rows = connection.execute(box_sql, box, prepare=True).fetchall()
            boxes.append((time.perf_counter() - began) * 1000)
            began = time.perf_counter()
            near = connection.execute(near_sql, middle, prepare=True).fetchall()
            nearest.append((time.perf_counter() - began) * 1000)
            began = time.perf_counter()
            nearest_ones = connection.execute(exact_sql, (*middle, *middle), prepare=True).fetchall()
            exact.append((time.perf_counter() - began) * 1000)
            if round_ is asked:
                ids, ten = answers[at]
                rows_found += len(rows)
                same = {row[0] for row in rows} == ids and [row[0] for row in nearest_ones] == ten
                differing += not same
                by_sphere += [row[0] for row in near] != ten
    result.figures[f"{kind}_rows_per_box"] = round(rows_found / len(asked), 1)
    result.figures[f"{kind}_answers_that_differ"] = differing
    result.figures[f"{kind}_nearest_postgis_answers_that_differ"] = by_sphere
    for name, ours_is, samples in (
        ("box", "box", boxes),
        ("nearest", "nearest", nearest),
        ("nearest_exact", "nearest", exact),
    ):
        ours = result.figures[f"{kind}_{ours_is}_p50_ms"]
        theirs = percentiles(samples)["p50_ms"]
        result.figures[f"{kind}_{name}_postgis_p50_ms"] = theirs
        result.figures[f"{kind}_{name}_times_postgis"] = round(ours / theirs, 2)
        say(f"{kind}, {name}: PostGIS p50 {theirs} ms, Keytide {ours / theirs:.2f} times that")
    invariant(differing == 0, "BenchmarkPeer", f"{differing} of {len(asked)} answers about {kind} differ")
