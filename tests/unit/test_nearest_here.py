"""The nearest the short way, of slices that are all here: what all documents, measured one by one, give; and
what is left to the long way, which gives the same."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest

from indexer.hosting.snapshot_reader import JointReader, OpenSnapshot
from indexer.scan.local.once import NotShortError
from indexer.scan.nearest import rows, search
from indexer.scan.nearest.here import MOST_ENTRIES
from indexer.scan.nearest.rows import scan_nearest
from indexer.scan.query.queries import QueryService
from indexer.scan.query.request import QueryRequest
from indexer.scan.request.request import Near, ScanRequest
from indexer.store.fold.worker import FoldWorker
from keytide.geometry import NotAGeometryError, distance, geometry_of, point
from keytide.structure.place_columns import MOST_AREA_BYTES
from keytide.structure.spatial import frame_of
from tests import geometry_shapes as shapes
from tests import share
from tests.unit.scan_world import Doc, FakeView, Keep, StoredSnapshot, World, stores
from tests.unit.test_api import Endpoint
from tests.unit.test_spatial_reads import BY_CELL, BY_ID, SPLITS, around, dot, never, square

Answer = dict[str, Any]


class Here:
    """One node with places, all of whose slices are read as one.

    Args:
        places: by id.
        keep: keeps the slices; in memory by default.
    """

    def __init__(
        self, statement: str, srid: int, places: dict[str, Answer], keep: Keep | None = None
    ) -> None:
        splits = ", ".join(map(str, SPLITS[srid]))
        self.places, self.frame = places, frame_of(srid)
        self.geometries = {id_: geometry_of(place, self.frame) for id_, place in places.items()}
        self._away: dict[tuple[float, ...], dict[str, float]] = {}
        self.world = World(statement.format(srid=f"srid={srid}", splits=splits), node_count=1)
        if keep is not None:
            self.world.keep = keep
        docs = [Doc([place], id_, b'{"n":%d}' % at) for at, (id_, place) in enumerate(places.items())]
        self.world.commit(1, {"by_place": docs})

    def ask(self, asked: Sequence[tuple[Sequence[float], int]], *, soon: bool, **more: Any) -> list[Answer]:
        """The answers of one endpoint, one after the other: the nearest to each point, so many.

        Raises:
            NotShortError: one is not had soon, and is to be.
        """

        async def main() -> list[Answer]:
            service = self.world.services()["n0"]
            self.world.nodes["n0"].joint = True
            answers = []
            for place, limit in asked:
                near = Near(point=list(place), limit=limit)
                request = ScanRequest(near=near, explain=True, **more)
                answer = await scan_nearest(service.shared, "by_place", request, near, never, soon=soon)
                answers.append(json.loads(answer.body))
            return answers

        return asyncio.run(main())

    def away(self, place: Sequence[float]) -> dict[str, float]:
        """How far each document is from a point, measured one by one."""
        if (measured := self._away.get(tuple(place))) is None:
            here = point(place[0], place[1], self.frame)
            measured = {id_: distance(one, here) for id_, one in self.geometries.items()}
            self._away[tuple(place)] = measured
        return measured

    def check(self, place: Sequence[float], limit: int, answer: Answer) -> None:
        """See that an answer is that of all documents."""
        away = self.away(place)
        expected = sorted((far, id_) for id_, far in away.items())[:limit]
        given = answer["rows"]
        told = [row["distance"] for row in given]
        assert told == sorted(told)
        assert told == pytest.approx([far for far, _ in expected], rel=1e-12, abs=1e-8)
        assert len({row["id"] for row in given}) == len(given)
        for row, far in zip(given, told, strict=True):
            assert far == pytest.approx(away[row["id"]], rel=1e-12, abs=1e-8)
            assert row["key"][0]["type"] == self.places[row["id"]]["type"]
        for one, other in itertools.pairwise(given):
            assert one["distance"] < other["distance"] or one["id"] < other["id"]


def places_around(seed: int, kinds: str, srid: int) -> tuple[list[float], dict[str, Answer]]:
    """A place, often a pole, on the antimeridian or at the corner of a face, and what lies around it: most
    near to one another, some far away, some at one place."""
    rng = random.Random(seed)
    middle, found = shapes.place(rng), dict[str, Answer]()
    for at in range(60):
        size = rng.choice([0.001, 0.01, 0.01, 0.1, 1.0])
        there = shapes.beside(middle, rng.uniform(0, 7), size * rng.random())
        if found and rng.random() < 0.1:
            there = next(iter(found.values()))["coordinates"]
            there = there if isinstance(there[0], float) else there[0][0]
        kind = rng.choice(kinds)
        ring = shapes.star(rng, there, size * rng.uniform(0.05, 0.5), rng.randint(4, 9))
        place = {"type": "Polygon", "coordinates": [ring]} if kind == "a" else dot(*there)
        try:
            geometry_of(place, frame_of(srid))
        except NotAGeometryError:
            place = dot(*there)
        found[f"d{at:03}"] = place
    return middle, found


@pytest.mark.parametrize("kinds", ["p", "a", "pa"], ids=["points", "areas", "both"])
@pytest.mark.parametrize(
    ("statement", "srid"), [(BY_ID, 4326), (BY_CELL, 4326), (BY_ID, 0), (BY_CELL, 0)],
    ids=["by-id", "by-cell", "by-id-planar", "by-cell-planar"],
)  # fmt: skip
def test_the_nearest_are_those_of_all(statement: str, srid: int, kinds: str) -> None:
    rng = random.Random(7)
    for seed in share.seeds(16):
        middle, places = places_around(seed, kinds, srid)
        here = Here(statement, srid, places)
        asked = [(middle, limit) for limit in (1, 3, 10, 10, 60, 70)]
        asked += [
            (shapes.beside(middle, rng.uniform(0, 7), 10 ** rng.uniform(-5, 0.4)), 10) for _ in range(6)
        ]
        for (place, limit), answer in zip(asked, here.ask(asked, soon=True), strict=True):
            here.check(place, limit, answer)
            assert answer["explain"]["searches"] <= 6


def test_what_lies_far_apart_is_found_after_what_lies_close_together() -> None:
    rng = random.Random(2)
    town = {f"t{at:03}": dot(11 + rng.gauss(0, 1e-4), 11 + rng.gauss(0, 1e-4)) for at in range(300)}
    land = {f"l{at:03}": dot(rng.uniform(5, 17), rng.uniform(5, 17)) for at in range(200)}
    here = Here(BY_CELL, 4326, town | land)
    asked = [
        (place, 10) for place in ([11.0, 11.0], [6.0, 16.0], [11.0, 11.0001], [16.0, 6.0], [-100.0, -60.0])
    ]
    for (place, limit), answer in zip(asked, here.ask(asked, soon=False), strict=True):
        here.check(place, limit, answer)


def test_a_search_that_was_asked_before_reads_little() -> None:
    lattice = {f"d{at:04}": dot(10 + at % 55 / 10, 10 + at // 55 / 10) for at in range(3_000)}
    rng = random.Random(3)
    asked = [([rng.uniform(11, 14), rng.uniform(11, 14)], 10) for _ in range(40)]
    explained = [one["explain"] for one in Here(BY_CELL, 4326, lattice).ask(asked, soon=True)][10:]
    assert sum(one["searches"] for one in explained) < 1.2 * len(explained)
    assert sum(slice_["rows_read"] for one in explained for slice_ in one["slices"]) < 60 * len(explained)
    assert all(len(one["slices"]) == 1 for one in explained), (
        "slices in which there is nothing are not told of"
    )


class RingOf:
    """`indexer.hosting.snapshots.SnapshotRing` of one snapshot of a store."""

    def __init__(self, snapshot: StoredSnapshot) -> None:
        self._open = OpenSnapshot(snapshot.stored, 1)

    def find(self, number: int) -> OpenSnapshot:
        return self._open

    def hold(self, found: OpenSnapshot, reads: int = 1) -> bool:
        return True

    def give_back(self, held: OpenSnapshot) -> None:
        pass

    def report_damage(self, reason: str) -> None:
        raise AssertionError(reason)


def joint_of_stores(view: FakeView, index: str, slices: Sequence[int], number: int) -> JointReader:
    held = [cast(StoredSnapshot, view._slice(index, one).snapshots[number]) for one in slices]
    joint = JointReader.of([RingOf(one) for one in held], number)
    assert joint is not None
    joint.timestamps, joint.incarnations = [one.timestamp for one in held], [one.incarnation for one in held]
    return joint


@pytest.mark.parametrize("statement", [BY_ID, BY_CELL])
@pytest.mark.parametrize("soon", [True, False])
def test_of_stores_on_disk_they_are_those_of_all(
    statement: str, soon: bool, tmp_path: Path, folds: FoldWorker
) -> None:
    """What a cursor read before is of no concern: of a few everything is read, and of a town far away."""
    rng = random.Random(1)
    few = {f"d{at:03}": dot(rng.uniform(-179, 179), rng.uniform(-80, 80)) for at in range(7)}
    town = {f"d{at:03}": dot(11 + rng.gauss(0, 1e-4), 11 + rng.gauss(0, 1e-4)) for at in range(300)}
    with stores("lmdb", tmp_path, folds) as keep, mock.patch.object(FakeView, "joint", joint_of_stores):
        for places in (few, town):
            here = Here(statement, 4326, places, keep)
            asked = [([-100.0, -60.0], 10), ([0.0, 0.0], 5), ([11.0, 11.0], 10), ([100.0, 50.0], 3)]
            for (place, limit), answer in zip(asked, here.ask(asked, soon=soon), strict=True):
                here.check(place, limit, answer)


def test_what_was_tried_the_short_way_is_not_tried_so_again() -> None:
    here = Here(BY_ID, 4326, {"line": {"type": "LineString", "coordinates": [[1, 1], [2, 2]]}})
    with mock.patch.object(search, "nearest_here") as again:
        (answer,) = here.ask([([1.5, 1.5], 3)], soon=False)
    here.check([1.5, 1.5], 3, answer)
    again.assert_not_called()


def test_nothing_and_little_are_found_soon() -> None:
    for srid in (4326, 0):
        assert Here(BY_ID, srid, {}).ask([([0, 0], 5)], soon=True)[0]["rows"] == []
        few = Here(BY_CELL, srid, {"a": dot(-170, -80), "b": dot(179, 89)})
        for answer in few.ask([([0, 0], 5)] * 2, soon=srid == 4326):
            few.check([0, 0], 5, answer)


CROWD = {f"c{at:04}": dot(1.5, 1.5) for at in range(MOST_ENTRIES + 500)}
LARGE = {f"a{at:03}": around(200) for at in range(MOST_AREA_BYTES // 4_400 + 5)}


@pytest.mark.parametrize(
    ("places", "asked", "more"),
    [
        (CROWD, [1.5, 1.5], {}),
        (LARGE, [11.0, 11.0], {}),
        ({"line": {"type": "LineString", "coordinates": [[1, 1], [2, 2]]}}, [1.5, 1.5], {}),
        ({"a": dot(1, 1)}, [1.5, 1.5], {"consistency": "tip"}),
    ],
    ids=["crowd", "large", "rare", "tip"],
)
def test_what_is_much_or_out_of_the_ordinary_is_found_the_long_way(
    places: dict[str, Answer], asked: list[float], more: Answer
) -> None:
    here = Here(BY_ID, 4326, places)
    with pytest.raises(NotShortError):
        here.ask([(asked, 3)], soon=True, **more)
    (answer,) = here.ask([(asked, 3)], soon=False, **more)
    here.check(asked, 3, answer)
    with pytest.raises(NotShortError):
        here.ask([(asked, MOST_ENTRIES)], soon=True, **more)


def test_queries_go_the_same_way() -> None:
    places = {f"d{at:02}": square(11, 11, 0.1 + at / 20) for at in range(40)} | {"far": dot(30, 30)}
    here = Here(BY_CELL, 4326, places)

    async def main() -> list[Any]:
        service = here.world.services()["n0"]
        here.world.nodes["n0"].joint = True
        queries = QueryService(service.shared)
        ordered = "ORDER BY ST_Distance(place, ST_Point(11, 11))"
        found = []
        for rest in ("LIMIT 3", ", n DESC LIMIT 3", "LIMIT 0", "LIMIT 41"):
            sql = f"SELECT n FROM users {ordered}{rest if rest[0] == ',' else ' ' + rest}"
            answer = await queries.answer(QueryRequest(sql=sql), never)
            found.append([row[0] for row in json.loads(answer.body)["rows"]])
        assert not here.world.nodes["n0"].reads or found[2] == []
        return found

    assert asyncio.run(main()) == [[0, 1, 2], [39, 38, 37], [], list(range(41))]


def test_the_endpoint_answers_soon_what_it_can_and_else_goes_the_long_way() -> None:
    """Over HTTP, with this node's own way to its slices."""
    here = Here(BY_CELL, 4326, CROWD | {"far": dot(20, 20), "farther": dot(21, 20)})
    path = "/v1/indexes/by_place/scan"
    long_ways = mock.Mock(wraps=search.nearest)
    with Endpoint(here.world) as endpoint, mock.patch.object(rows, "nearest", long_ways):
        for place, limit, calls in (([20.0, 20.1], 1, 0), ([20.5, 20.0], 2, 0), ([1.5, 1.5], 2, 1)):
            response = endpoint.post(path, near={"point": place, "limit": limit})
            assert response.status_code == 200, response.text
            here.check(place, limit, response.json())
            assert long_ways.call_count == calls
        assert not endpoint.bugs
        refused = endpoint.post(path, near={"point": [200, 0], "limit": 1})
        assert refused.status_code == 422
