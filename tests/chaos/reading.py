"""Readers: scans of all sorts through all nodes, each compared with the truth at its own timestamp."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError

from keytide.cli.admin import Admin
from keytide.client import Client
from keytide.client import Row as Answered
from keytide.errors import KeytideError
from tests.chaos.run import ANSWER_MS, Run, Target
from tests.chaos.shapes import NOT_A_GEOMETRY, Shape
from tests.chaos.spatial import Asked
from tests.chaos.truth import (
    Lines,
    Places,
    Row,
    Selection,
    TooOldError,
    difference,
    ledger_difference,
    row_text,
    story,
)
from tests.chaos.writing import GIVES_UP
from tests.oracle import MISSING, compare

WAITS = frozenset({410, 429, 502, 503, 504})
"""Answers that say: not now. Everything else but rows is a failure."""
Offsets = dict[int, int]


class Reader:
    """Scans and compares until the run is over.

    Args:
        pause_s: between scans, at most.
    """

    def __init__(self, run: Run, seed: int, pause_s: float = 0.1) -> None:
        self._run = run
        self._pause_s = pause_s
        self._chance = random.Random(seed)
        self._session: dict[str, tuple[str, Offsets]] = {}
        self._producer: KafkaProducer | None = None

    def work(self) -> None:
        """The thread."""
        while not self._run.stopping.is_set():
            targets = self._run.targets()
            if targets:
                self.once(self._chance.choice(targets))
            self._run.pause(self._chance.uniform(0, self._pause_s))

    def once(self, target: Target) -> None:
        """One scan of some sort."""
        sort = self._chance.choices(("scan", "pages", "slow pages", "count", "own write"), (5, 3, 1, 3, 2))[0]
        with self._run.client(self._chance.randrange(100)) as client:
            try:
                if sort == "count":
                    self._count(client, target)
                elif sort == "own write":
                    self._own_write(client, target)
                else:
                    self._scan(client, target, sort)
            except KeytideError as error:
                self._run.refused(error)
                if error.problem_type == "history-changed" and self._run.rolled_back:
                    self._session.pop(target.keyspace, None)
                elif error.status not in WAITS and self._run.offered(target):
                    self._run.fail(
                        f"{sort} of {target.name} was answered {error.status} {error.problem_type}: {error}"
                    )
                self._run.pause(0.1)
            except KafkaError:  # the truth cannot be read
                self._run.pause(0.5)

    def check(self, client: Client, target: Target, **demands: Any) -> None:
        """Compare a whole index with the truth."""
        self._scan(client, target, "scan", Selection(), demands)

    def check_ledger(self, target: Target, limit_s: float) -> None:
        """Compare the skip ledger of a spatial index with the truth, when nobody writes any more: it has that
        by the end of the limit.

        Raises:
            KeytideError: the coordinator does not tell it.
        """
        if target.shape.skips is None:
            return
        deadline = time.monotonic() + limit_s
        must, may = self._run.truths[target.keyspace].ledger(target.shape)
        while wrong := ledger_difference(must, may, self._ledger(target)):
            if time.monotonic() > deadline:
                self._run.fail(f"the ledger of {target.name} is not what the source says", wrong[:40])
                return
            time.sleep(0.3)
        self._run.count(ledger_lines=len(must))

    def _ledger(self, target: Target) -> Lines:
        """Its lines for what is no geometry."""
        found: Lines = set()
        page: str | None = None
        with Admin(self._run.coordinator) as admin:
            while True:
                told = admin.call("GET", f"/v1/indexes/{target.name}/skipped", limit=1000, page=page)
                found |= {
                    (line["partition"], line["offset"])
                    for line in told["lines"]
                    if line["reason"] == NOT_A_GEOMETRY
                }
                page = told["page"]
                if page is None:
                    return found

    def _scan(
        self,
        client: Client,
        target: Target,
        sort: str,
        selection: Selection | None = None,
        demands: dict[str, Any] | None = None,
    ) -> None:
        chance = self._chance
        chosen = selection or self._selection(sort, target.shape)
        request = {**chosen.request, "timeout_ms": ANSWER_MS, **(demands or {})}
        seen: Offsets = {}
        if sort == "scan" and demands is None and chance.random() < 0.4:
            client.session, seen = self._session.get(target.keyspace, (None, {}))
        limit = chosen.limit or (chance.choice((20, 100, 400)) if sort != "scan" else 100_000)
        how_many = {} if chosen.distance else {"limit": limit}  # (the nearest come in one answer)
        page = client.page(target.name, **{**request, **how_many})
        snapshot, places = page.snapshot, _places(page.timestamp)
        offsets = {p: offset for p, (offset, _) in places.items()}
        rows = [_found(row) for row in page.rows]
        pages = 1
        while page.page is not None and (chosen.limit is None or len(rows) < chosen.limit):
            if sort == "slow pages" and pages < 8:
                self._run.pause(chance.uniform(0.2, 1.5))
            page = client.page(target.name, page=page.page)
            rows += [_found(row) for row in page.rows]
            pages += 1
            if page.snapshot != snapshot:
                self._run.fail(
                    f"{target.name}: a page came from snapshot {page.snapshot}, not {snapshot} (Stable)"
                )
        if pages > 1:  # (a page may end sooner, by its bytes: the last one may have more than were wanted)
            rows = rows[: chosen.limit]
        self._run.count(scans=1, pages=pages, rows=len(rows))
        self._went_back(target, seen, offsets, "a session")
        self._went_back(
            target, {int(p): at for p, at in request.get("at_least", {}).items()}, offsets, "at_least"
        )
        if client.session is not None:
            self._session[target.keyspace] = client.session, offsets
        self._compare(target, chosen, rows, places, snapshot)

    def _count(self, client: Client, target: Target) -> None:
        selection = self._selection("count", target.shape)
        request = {name: value for name, value in selection.request.items() if name != "reverse"}
        answer = client.count(target.name, timeout_ms=ANSWER_MS, **request)
        places = _places(answer.timestamp)
        self._run.count(scans=1, counts=1)
        expected = self._expected(target, places)
        if expected is None:
            return
        wanted = sum(selection.keeps is None or selection.keeps(row.key[0]) for row in expected)
        if answer.count != wanted and self._run.offered(target):
            self._run.fail(
                f"count of {target.name} {request} at snapshot {answer.snapshot}, {places}: {answer.count}, "
                f"and the source says {wanted}"
            )

    def _own_write(self, client: Client, target: Target) -> None:
        """Write a document, and see it in the next scan that demands it."""
        try:
            partition, offset = self._write(target)
        except GIVES_UP:
            with suppress(*GIVES_UP):
                if self._producer is not None:
                    self._producer.close(timeout=1)
            self._producer = None
            self._run.pause(0.5)
            return
        self._run.count(written=1, own_writes=1)
        demands = {"at_least": {str(partition): offset + 1}}
        self._scan(client, target, "scan", Selection(), demands)

    def _write(self, target: Target) -> tuple[int, int]:
        """Write a document; its partition and offset."""
        if self._producer is None:
            self._producer = KafkaProducer(
                bootstrap_servers=self._run.bootstrap,
                acks="all",
                max_block_ms=5_000,
                delivery_timeout_ms=11_000,
                request_timeout_ms=10_000,
            )
        number = self._chance.randrange(50)
        value = b'{"city": "own", "n": %d, "mood": "own", "tags": ["own"]}' % self._chance.randrange(400)
        future = self._producer.send(target.keyspace, key=b"own%d" % number, value=value)
        written = future.get(12)
        return written.partition, written.offset

    def _selection(self, sort: str, shape: Shape) -> Selection:
        """Some way to select entries; often all of them."""
        chance = self._chance
        reverse = chance.random() < 0.3 and shape.ordered
        request: dict[str, Any] = {"reverse": True} if reverse else {}
        limit = chance.choice((None, None, None, 1, 20)) if sort == "scan" else None
        x = chance.random()
        if x < 0.5:
            return Selection(request, None, reverse, limit)
        if shape.ask is not None:
            return self._spatial(sort, shape.ask, limit)
        value: Any = chance.choice(
            (f"city{chance.randrange(40)}", "good", None, 7, chance.randrange(500), "t3", True)
        )
        if not shape.ordered and x < 0.75:
            values = [value, *(f"city{chance.randrange(40)}" for _ in range(chance.randrange(1, 6)))]
            return Selection(
                {**request, "spans": [{"equals": [one]} for one in values]},
                lambda part: any(compare(part, one) == 0 for one in values),
                reverse,
                limit,
            )
        if x < 0.75 or not shape.ordered:
            return Selection(
                {**request, "equals": [value]}, lambda part: compare(part, value) == 0, reverse, limit
            )
        high: Any = chance.choice((f"city{chance.randrange(40)}", "z", 700, ["a"]))
        low, high = (value, high) if compare(value, high) <= 0 else (high, value)
        inclusion = chance.choice(("both", "low", "high", "neither"))

        def keeps(part: Any) -> bool:
            below, above = compare(part, low), compare(part, high)
            above_low = below > 0 or (below == 0 and inclusion in ("both", "low"))
            return above_low and (above < 0 or (above == 0 and inclusion in ("both", "high")))

        return Selection(
            {**request, "low": [low], "high": [high], "inclusion": inclusion}, keeps, reverse, limit
        )

    def _spatial(self, sort: str, ask: Callable[[random.Random], Asked], limit: int | None) -> Selection:
        """A condition on geometries; the nearest come in one answer, and are not counted."""
        asked = ask(self._chance)
        while asked.distance is not None and sort != "scan":
            asked = ask(self._chance)
        if asked.distance is not None:
            limit = asked.request["near"]["limit"]
        return Selection(asked.request, asked.keeps, False, limit, asked.distance)

    def _went_back(self, target: Target, before: Offsets, now: Offsets, whose: str) -> None:
        if any(now.get(partition, 0) < offset for partition, offset in before.items()) and self._run.offered(
            target
        ):
            self._run.fail(
                f"{target.name}: {whose} demanded {before}, and the answer is from {now} (Monotonic)"
            )

    def _expected(self, target: Target, places: Places) -> list[Row] | None:
        try:
            return self._run.truths[target.keyspace].rows(target.shape, places)
        except TooOldError:
            self._run.count(too_old_to_compare=1)
            return None

    def _compare(
        self, target: Target, chosen: Selection, rows: list[Row], places: Places, snapshot: int | None
    ) -> None:
        expected = self._expected(target, places)
        if expected is None:
            return
        wrong = difference(expected, rows, target.shape, chosen)
        self._run.count(compared=1)
        if not wrong or not self._run.offered(target):
            return
        asked = {**chosen.request, "limit": chosen.limit}
        lines = [
            f"{len(rows)} rows were answered at snapshot {snapshot}, {places}; asked for {asked}",
            *wrong[:8],
        ]
        lines += tell(self._run, target.keyspace, wrong)
        self._run.fail(f"{target.name} ({target.shape.clauses}) is not what its source says", lines)


def tell(run: Run, keyspace: str, wrong: list[str]) -> list[str]:
    """The stories of the first documents that differ."""
    ids = [line.split("'")[1] for line in wrong if line.startswith(("extra: ('", "missing: ('"))]
    lines: list[str] = []
    for id_ in dict.fromkeys(ids[:3]):
        lines.append(f"document {id_} in {keyspace}:")
        try:
            lines += [f"    {line}" for line in story(run.bootstrap, keyspace, id_)]
        except KafkaError as error:
            lines.append(f"    cannot be read: {error}")
    return lines


def _places(timestamp: dict[str, dict[str, int]]) -> Places:
    return {int(p): (place["offset"], place["epoch"]) for p, place in timestamp.items()}


def _found(row: Answered) -> Row:
    key = [MISSING if at in row.missing else part for at, part in enumerate(row.key)]
    return Row(key, row.id, row_text(key, row.include))
