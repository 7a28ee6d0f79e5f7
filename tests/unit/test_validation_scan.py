"""Whole validated scans on nodes in memory, against primaries that the test moves by hand."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any

import pytest
import xxhash

from indexer.scan.gather.service import ScanService
from indexer.scan.request.request import HoldRequest, ScanRequest
from indexer.validation.core.primary import (
    AnsweredDocument,
    NoPrimaryError,
    PrimaryAnswer,
    PrimaryMisconfiguredError,
    PrimaryUnreachableError,
)
from indexer.validation.core.verdicts import NO_VERSION, NOT_THERE_YET, PRIMARY_BEHIND
from indexer.validation.service import Validation
from indexer.validation.versions import TASK
from keytide.errors import CallerError
from keytide.model.timestamp import Timestamp
from keytide.settings.settings import PrimarySettings, ScanSettings
from tests.unit.scan_world import KEYSPACE, World
from tests.unit.test_validation import projected

NUMBER = 7
Json = dict[str, Any]


class Primary:
    """Documents that the test changes.

    Attributes:
        position: of every partition; None for a primary that is always ahead.
        calls: the ids of each call.
        before: called before each answer.
    """

    def __init__(self, documents: dict[str, Any], position: int | None = None) -> None:
        self.documents_by_id = dict(documents)
        self.position = position
        self.calls: list[list[str]] = []
        self.before: Callable[[], None] = lambda: None
        self.fields: set[str] = set()
        self.since: Timestamp | None = None

    def documents(
        self, asked: Sequence[AnsweredDocument], fields: Collection[str], since: Timestamp, timeout_s: float
    ) -> list[PrimaryAnswer]:
        assert timeout_s > 0
        self.before()
        self.calls.append([one.id.decode() for one in asked])
        self.fields, self.since = set(fields), since
        return [self._found(self.documents_by_id.get(one.id.decode())) for one in asked]

    def _found(self, document: Any) -> PrimaryAnswer:
        return PrimaryAnswer(None if document is None else json.dumps(document).encode(), self.position)

    def close(self) -> None:
        pass


class Bench:
    """Nodes in memory whose slices hold what the documents project to, each with a version.

    Args:
        statements: CREATE INDEX on `users`; all of the same documents.
    """

    def __init__(self, *statements: str, documents: dict[str, Any], **settings: Any) -> None:
        self.world = World(*statements)
        self.settings = PrimarySettings.model_validate({"kind": "topic", **settings})
        self.primary = Primary(documents)
        self.offsets = {id_: at for at, id_ in enumerate(documents)}
        for statement in statements:
            name = statement.split()[2]
            self.world.commit(NUMBER, {name: []}, offsets={0: len(documents)})
            record = self.world.index(name)
            for key, value, partition_key in projected(statement, documents):
                id_ = next(
                    one for one in sorted(documents, key=len, reverse=True) if key.endswith(one.encode())
                )
                number = xxhash.xxh3_64_intdigest(partition_key) % record.slices
                for view in self.world.views.values():
                    held = view.slices.get((record.id, number))
                    if held is not None:
                        snapshot = held.snapshots[NUMBER]
                        snapshot.entries = sorted([*snapshot.entries, (key, value)])
                        snapshot.back[id_.encode()] = (0, self.offsets[id_])

    def services(self, **scan: Any) -> dict[str, ScanService]:
        limits = ScanSettings.model_validate(scan)
        self.world.services(limits)
        return {
            name: ScanService(
                view,
                self.world.nodes[name].readers[name],
                self.world.nodes[name],
                limits,
                Validation(view, self.world.nodes[name], {KEYSPACE: self.settings}, lambda _: self.primary),
            )
            for name, view in self.world.views.items()
        }


async def never() -> None:
    await asyncio.Event().wait()


async def scan(service: ScanService, name: str = "by_city", **request: Any) -> Json:
    answer = await service.scan(name, ScanRequest(validate=True, **request), never)
    decoded: Json = json.loads(answer.body)
    assert answer.rows == len(decoded["rows"])
    return decoded


async def next_page(service: ScanService, token: str, name: str = "by_city") -> Json:
    decoded: Json = json.loads((await service.scan(name, ScanRequest(page=token), never)).body)
    return decoded


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def told(answer: Json) -> dict[str, str]:
    """Document id -> "" when valid, else the reason why it is not known."""
    for row in answer["rows"]:
        assert row["validated"] is ("reason" not in row)
    return {row["id"]: row.get("reason", "") for row in answer["rows"]}


BY_CITY = "CREATE INDEX by_city ON users (city) WITH (slices=4)"
PEOPLE = {"ann": {"city": "Oslo"}, "bo": {"city": "Rome"}, "cy": {"city": "Bonn"}, "di": {"city": "Cork"}}


def test_rows_that_the_primary_no_longer_has_are_dropped_and_counted() -> None:
    bench = Bench(BY_CITY, documents=PEOPLE)
    bench.primary.documents_by_id.update(bo={"city": "Riga"}, cy=None, ann={"city": "Oslo", "age": 3})

    async def work() -> None:
        services = bench.services()
        for service in services.values():
            answer = await scan(service)
            assert told(answer) == {"di": "", "ann": ""}
            assert answer["validation"] == {"valid": 2, "stale": 2, "unknown": {}, "waited_ms": 0}
            plain = json.loads((await service.scan("by_city", ScanRequest(), never)).body)
            assert len(plain["rows"]) == 4, "nothing is deleted on sight"
            assert "validation" not in plain
            assert "validated" not in plain["rows"][0]
        assert bench.primary.fields == {"city"}
        assert bench.primary.since == Timestamp.of({0: 4})

    run(work)


def test_a_primary_that_is_behind_leaves_rows_unknown() -> None:
    async def work() -> None:
        for wait_ms in (30, 1_000, 10_000):  # where others run, too, the first answer may take longer
            bench = Bench(BY_CITY, documents=PEOPLE, wait_ms=wait_ms)
            bench.primary.position = 2  # it has ann (0) and bo (1)
            found = [("ann", "Nice"), ("cy", "Nice"), ("bo", "Rome")]
            bench.primary.documents_by_id = {id_: {"city": city} for id_, city in found}
            answer = await scan(bench.services()["n0"])
            if len(bench.primary.calls) > 1:
                break
        assert told(answer) == {"bo": "", "cy": PRIMARY_BEHIND, "di": NOT_THERE_YET}
        assert answer["validation"]["unknown"] == {PRIMARY_BEHIND: 1, NOT_THERE_YET: 1}
        assert answer["validation"]["stale"] == 1
        first, *others = bench.primary.calls
        assert sorted(first) == sorted(PEOPLE)
        assert others, "it was asked again within the wait"
        assert all(sorted(one) == ["cy", "di"] for one in others), "for what it was behind only"

    run(work)


def test_a_primary_that_catches_up_within_the_wait_is_waited_for() -> None:
    bench = Bench(BY_CITY, documents=PEOPLE, wait_ms=20_000)
    bench.primary.position = 2
    bench.primary.documents_by_id = {"ann": {"city": "Oslo"}, "bo": {"city": "Rome"}}

    def catch_up() -> None:
        if len(bench.primary.calls) == 3:
            bench.primary.position = 4
            bench.primary.documents_by_id["cy"] = {"city": "Bonn"}

    bench.primary.before = catch_up

    async def work() -> None:
        service = bench.services()["n0"]
        answer = await scan(service)
        assert told(answer) == {"ann": "", "bo": "", "cy": ""}
        assert answer["validation"]["stale"] == 1
        assert answer["validation"]["waited_ms"] > 0
        assert len(bench.primary.calls) == 4

    run(work)


def test_the_wait_ends_with_the_time_of_the_request() -> None:
    bench = Bench(BY_CITY, documents=PEOPLE, wait_ms=60_000)
    bench.primary.position = 0
    bench.primary.documents_by_id = {}

    async def work() -> None:
        service = bench.services()["n0"]
        async with asyncio.timeout(20):
            answer = await scan(service, timeout_ms=100)
        assert set(told(answer).values()) == {NOT_THERE_YET}

    run(work)


def test_a_primary_that_is_down_or_hangs_leaves_all_rows_unknown() -> None:
    bench = Bench(BY_CITY, documents=PEOPLE)
    free = threading.Event()

    def fail() -> None:
        raise PrimaryUnreachableError("the primary of users does not answer")

    def hang() -> None:
        free.wait(20)

    async def work() -> None:
        service = bench.services()["n0"]
        bench.primary.before = fail
        answer = await scan(service)
        assert told(answer) == dict.fromkeys(PEOPLE, "primary-unreachable")
        assert answer["validation"]["detail"] == "the primary of users does not answer"
        assert answer["validation"]["unknown"] == {"primary-unreachable": 4}
        bench.primary.before = hang
        async with asyncio.timeout(10):
            answer = await scan(service, timeout_ms=100)
        free.set()
        assert told(answer) == dict.fromkeys(PEOPLE, "primary-unreachable")
        assert "did not answer within 0.1 s" in answer["validation"]["detail"]
        bench.primary.before = lambda: None
        assert told(await scan(service)) == dict.fromkeys(PEOPLE, "")

    run(work)


def test_a_primary_that_goes_down_during_the_wait_keeps_what_was_known() -> None:
    bench = Bench(BY_CITY, documents=PEOPLE, wait_ms=20_000)
    bench.primary.position = 2
    bench.primary.documents_by_id = {"ann": {"city": "Oslo"}, "cy": {"city": "Bern"}}

    def fail_later() -> None:
        if bench.primary.calls:
            raise PrimaryUnreachableError("gone")

    bench.primary.before = fail_later

    async def work() -> None:
        answer = await scan(bench.services()["n0"])
        assert told(answer) == {"ann": "", "cy": PRIMARY_BEHIND, "di": NOT_THERE_YET}
        assert answer["validation"]["detail"] == "gone"

    run(work)


def test_pages_go_on_behind_rows_that_were_dropped() -> None:
    people = {f"p{at:03}": {"city": f"c{at:03}"} for at in range(90)}
    bench = Bench(BY_CITY, documents=people)
    gone = {f"p{at:03}" for at in range(90) if at % 3 == 0 or 20 <= at < 40}
    for id_ in gone:
        del bench.primary.documents_by_id[id_]

    async def work() -> None:
        services = bench.services()
        answer = await scan(services["n0"], limit=10, reverse=True)
        seen, sizes, stale = list(told(answer)), [len(answer["rows"])], answer["validation"]["stale"]
        while answer["page"] is not None:
            answer = await next_page(services[f"n{len(sizes) % 2}"], answer["page"])
            seen += told(answer)
            sizes.append(len(answer["rows"]))
            stale += answer["validation"]["stale"]
        assert seen == sorted(people.keys() - gone, reverse=True)
        assert stale == len(gone)
        assert len(sizes) == 9
        assert 0 in sizes, "a page may be empty, and yet there is a next"

    run(work)


STATEMENTS = {
    "plain": "CREATE INDEX i ON users (city) INCLUDE (name) WITH (slices=4)",
    "descending": "CREATE INDEX i ON users (city DESC, LOWER(name) DESC) WITH (slices=3)",
    "second-part": "CREATE INDEX i ON users (age, city DESC) PARTITION BY HASH(city) WITH (slices=5)",
    "by-id": "CREATE INDEX i ON users (city) PARTITION BY HASH(id) WITH (slices=4)",
    "by-other": "CREATE INDEX i ON users (city) PARTITION BY HASH(LENGTH(name)) WITH (slices=4)",
    "unnest": "CREATE INDEX i ON users (UNNEST(tags), age) WITH (slices=4)",
    "partial": "CREATE INDEX i ON users (city) WITH (slices=4) WHERE age >= 20",
}


def _rows(kind: str, id_: str, document: Json | None) -> list[str]:
    """What a document's rows are, in words of the test's own: (key, included columns)."""
    if document is None:
        return []
    city, name, age = document["city"], document["name"], document["age"]
    keys: dict[str, Iterable[Any]] = {
        "plain": [[city, name]],
        "descending": [[city, name.lower()]],
        "second-part": [[age, city]],
        "by-id": [city],
        "by-other": [city],
        "unnest": [[tag, age] for tag in set(document["tags"])],
        "partial": [city] if age >= 20 else [],
    }
    return [repr(key) for key in keys[kind]]


@pytest.mark.parametrize("kind", STATEMENTS)
@pytest.mark.parametrize("seed", [1, 2])
def test_rows_that_are_left_are_those_that_the_primary_has(kind: str, seed: int) -> None:
    """Against a naive model: of all rows, those that the documents of now would have too."""
    chance = random.Random(seed)

    def person() -> Json:
        return {
            "city": chance.choice(["Oslo", "Rome", 7, None, True, "x" * 600]),
            "name": chance.choice(["Ann", "BO", "Cyril"]),
            "age": chance.randrange(16, 24),
            "tags": [chance.choice("abcdef") for _ in range(3)],
        }

    people = {f"d{at}_": person() for at in range(60)}
    now: dict[str, Any] = {
        id_: chance.choice([document, document, person(), {**document, "age": 16}, None])
        for id_, document in people.items()
    }
    bench = Bench(STATEMENTS[kind], documents=people)
    bench.primary.documents_by_id = now
    bench.primary.position = len(people)  # it has every version, if the slices tell which that is
    expected = Counter(
        id_
        for id_, document in people.items()
        for row in _rows(kind, id_, document)
        if row in _rows(kind, id_, now[id_])
    )
    total = sum(len(_rows(kind, id_, document)) for id_, document in people.items())

    async def work() -> None:
        services = bench.services()
        answer = await scan(services["n1"], "i", reverse=seed == 2)
        valid = Counter(row["id"] for row in answer["rows"] if row["validated"])
        assert valid == expected
        if kind != "plain":
            assert answer["validation"] == {
                "valid": expected.total(),
                "stale": total - expected.total(),
                "unknown": {},
                "waited_ms": 0,
            }
        assert expected.total() not in (0, total)
        ids = [row for call in bench.primary.calls for row in call]
        assert len(ids) == len(set(ids)), "each document is asked for once"
        asked = [node for node, request in bench.world.nodes["n1"].reads if request.shape.task == TASK]
        assert len(asked) == len(set(asked)), "one request per node"

    run(work)


def test_included_columns_count_only_where_they_are_shown() -> None:
    statement = "CREATE INDEX by_city ON users (city) INCLUDE (name) WITH (slices=2)"
    bench = Bench(statement, documents={"a": {"city": "Oslo", "name": "Ann"}})
    bench.primary.documents_by_id["a"] = {"city": "Oslo", "name": "Anne"}

    async def work() -> None:
        service = bench.services()["n0"]
        answer = await scan(service)
        assert told(answer) == {"a": "columns-differ"}
        assert answer["rows"][0]["include"] == {"name": "Ann"}, "rows stay those of the snapshot"
        assert told(await scan(service, columns=["key", "id"])) == {"a": ""}
        (row,) = (await scan(service, columns=["include"]))["rows"]
        assert row == {"include": {"name": "Ann"}, "validated": False, "reason": "columns-differ"}

    run(work)


def test_a_tip_scan_whose_slices_moved_on_concludes_nothing_from_it() -> None:
    bench = Bench(BY_CITY, documents=PEOPLE)
    for snapshot in bench.world.held():
        snapshot.back.pop(b"bo", None)
    bench.primary.position = 10**6
    bench.primary.documents_by_id["bo"] = {"city": "Riga"}

    async def work() -> None:
        answer = await scan(bench.services()["n0"], consistency="tip")
        assert told(answer) == {"ann": "", "bo": NO_VERSION, "cy": "", "di": ""}

    run(work)


def test_rows_of_a_held_snapshot_are_validated_as_of_now() -> None:
    people = {f"p{at}": {"city": f"c{at}"} for at in range(8)}
    bench = Bench(BY_CITY, documents=people)

    async def work() -> None:
        services = bench.services()
        held = json.loads((await services["n0"].hold("by_city", HoldRequest(lease_s=30), never)).body)
        for at in range(8):
            bench.primary.documents_by_id[f"p{at}"] = None
            seen: list[str] = []
            answer = await scan(services["n1"], at=held["at"], limit=3)
            while True:
                seen += told(answer)
                if answer["page"] is None:
                    break
                answer = await next_page(services["n0"], answer["page"])
            assert seen == [f"p{other}" for other in range(at + 1, 8)]

    run(work)


def test_an_empty_selection_asks_nobody() -> None:
    bench = Bench(BY_CITY, documents=PEOPLE)

    async def work() -> None:
        answer = await scan(bench.services()["n0"], equals=["nowhere"])
        assert answer["rows"] == []
        assert answer["validation"] == {"valid": 0, "stale": 0, "unknown": {}, "waited_ms": 0}
        assert bench.primary.calls == []

    run(work)


def test_limits_and_settings_that_are_missing_are_told() -> None:
    bench = Bench(BY_CITY, documents=PEOPLE, max_rows=2)

    async def work() -> None:
        service = bench.services()["n0"]
        answer = await scan(service)
        assert len(answer["rows"]) == 2, "no limit is asked for: a page is as large as may be"
        assert answer["page"] is not None
        with pytest.raises(CallerError) as error:
            await scan(service, limit=3)
        assert (error.value.problem_type, error.value.status) == ("limit-too-large", 422)
        assert "primary.users.max_rows" in error.value.next_step
        plain = bench.world.services()["n0"]
        with pytest.raises(NoPrimaryError) as missing:
            await scan(plain)
        assert missing.value.status == 422
        assert "[primary.users]" in missing.value.next_step

        def refuse() -> None:
            raise PrimaryMisconfiguredError("no table")

        bench.primary.before = refuse
        with pytest.raises(PrimaryMisconfiguredError, match="no table"):
            await scan(service)

    run(work)


def test_a_validated_scan_holds_no_snapshot_while_it_waits_for_the_primary() -> None:
    bench = Bench(BY_CITY, documents=PEOPLE)
    readers: list[int] = []
    bench.primary.before = lambda: readers.append(sum(one.readers for one in bench.world.held()))

    async def work() -> None:
        await scan(bench.services()["n0"])
        assert readers == [0]

    run(work)


def test_many_scans_at_once_use_no_more_connections_than_are_set() -> None:
    bench = Bench(BY_CITY, documents=PEOPLE, connections=2)
    lock = threading.Lock()
    inside, most = 0, 0
    together = threading.Barrier(2)

    def count() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        together.wait(20)  # two at a time, or nobody goes on
        with lock:
            inside -= 1

    bench.primary.before = count

    async def work() -> None:
        service = bench.services()["n0"]
        scans: list[Awaitable[Json]] = [scan(service, timeout_ms=20_000) for _ in range(12)]
        for answer in await asyncio.gather(*scans):
            assert told(answer) == dict.fromkeys(PEOPLE, "")
        assert most == 2

    run(work)
