"""Clients that never stand still, and what they did and saw, for the checker.

Writers transfer amounts between accounts; after each round they read all indexes in their session, through
any node, and demand what they have written (`at_least`). Readers read them through the node of one host, in a
session for each round, and demand nothing. What they are refused is in the history, too. See `checker` for
what a transfer is, and why a document is left alone once a write of it was not acknowledged; `indexes` for
what is read.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import product
from typing import Any, Final, Self

from kafka import KafkaProducer

from keytide.client import Client
from keytide.errors import KeytideError
from keytide.process.worker import Worker
from tests.chaos.writing import GIVES_UP
from tests.hosts.checker import (
    ANY_NODE,
    NONE,
    ClientHistory,
    Posting,
    Postings,
    RefusedRead,
    SnapshotRead,
    TransferWrite,
)
from tests.hosts.cluster import TOKEN, HostWorld
from tests.hosts.indexes import ACCOUNTS, INDEXES, TOPIC, Asked, LedgerIndex, document_of
from tests.waiting import slowness

_ROWS: Final = 50_000
"""Of a page: all of them, so that an answer is one page, unless its time runs out."""
_ROUND: Final = 10
"""Transfers that a writer makes before it reads."""
_LIVE: Final = 150
"""Documents that a writer changes; new ones take the place of those that it has to leave alone."""
_PAUSE_S: Final = 0.3
_LOOK_PAUSE_S: Final = 0.6
"""Of a reader between two rounds."""
_RECENT: Final = 2_000
"""Reads among which the newest of each node and index is looked for."""
_DELIVERY_S: Final = 15.0
_END_S: Final = 90.0
_LAST_PARTS: Final = 20
"""Of an index that is asked for more than halves, at the end, by each node."""


def prepare(world: HostWorld) -> None:
    """The indexes, READY, on a topic without documents."""
    world.make_topic(TOPIC)
    for index in INDEXES:
        world.sql(index.statement)
    world.wait_ready(world.build(*(index.name for index in INDEXES)))


class Workload:
    """Clients in threads until it is left.

    Args:
        world: has the indexes (`prepare`), and no other clients write to its topic.
        seed: what is written follows from it.

    Attributes:
        history: what they did and saw so far.
    """

    def __init__(self, world: HostWorld, seed: int, writers: int = 2) -> None:
        self._world, self._seed = world, seed
        self._urls = world.cluster.node_urls
        self.history = ClientHistory(tuple(index.name for index in INDEXES))
        self._began = time.monotonic()
        self._over = threading.Event()
        self._same: dict[Posting, Posting] = {}
        """Postings that are equal are kept once: a read has hundreds, and there are thousands of reads."""
        works: list[tuple[Callable[[int], None], int]] = [
            (self._write, writers),
            (self._look, len(self._urls)),
        ]
        self._threads = [
            Worker(f"{work.__name__} {one}", None, lambda work=work, one=one: work(one))  # type: ignore[misc]
            for work, count in works
            for one in range(count)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        limit = _END_S * slowness()
        assert all(thread.wait(limit) for thread in self._threads), "a client stands still"
        self.check()

    def check(self) -> None:
        """Raise what a client ended with: nothing that it meets may end it."""
        for thread in self._threads:
            thread.check()

    def now(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def seen(self, since: float) -> list[int]:
        """The newest snapshot that the node of each host has answered from in reads of each index that began
        since then; -1 for none."""
        newest = dict.fromkeys(product(range(len(self._urls)), self.history.indexes), -1)
        for one in self.history.reads[-_RECENT:]:
            if one.begun >= since and one.node != ANY_NODE:
                newest[one.node, one.index] = max(newest[one.node, one.index], one.snapshot)
        return list(newest.values())

    def demanded(self) -> bool:
        """Whether of each index some read has shown what its client had written."""
        return {one.index for one in self.history.reads if one.at_least} == {*self.history.indexes}

    def read_end(self) -> None:
        """The last reads, of everything, of each half and of other parts, through each node; the clients have
        ended."""
        ends = self._world.ends(TOPIC)
        for host, url in enumerate(self._urls):
            with Client(url, token=TOKEN) as client:
                chance = random.Random(f"{self._seed} end {host}")
                for index in INDEXES:
                    parts = [index.part(chance) for _ in range(_LAST_PARTS) if index.part]
                    for asked in (index.everything, index.west, index.east, *parts):
                        if not self._read(client, f"end {host + 1}", host, index, asked, ends, last=True):
                            return

    def _look(self, host: int) -> None:
        chance = random.Random(f"{self._seed} reader {host}")
        with Client(self._urls[host], token=TOKEN) as client:
            while not self._over.wait(_LOOK_PAUSE_S):
                client.reset_session()
                session = f"reader {host + 1} at {self.now():.3f} s"
                for index, asked in _reads(chance):
                    if self._over.is_set() or not self._read(client, session, host, index, asked):
                        break

    def _write(self, number: int) -> None:
        urls = [*self._urls[number:], *self._urls[:number]]
        transfers = _Transfers(self._world.bootstrap, f"w{number}", random.Random(f"{self._seed} {number}"))
        chance = random.Random(f"{self._seed} writer {number}")
        try:
            with Client(urls, token=TOKEN) as client:
                while not self._over.wait(_PAUSE_S):
                    written = transfers.round(self.now)
                    self.history.writes += written
                    demanded = _places(written)
                    for index, asked in _reads(chance):
                        if self._over.is_set() or not self._read(
                            client, f"writer {number}", ANY_NODE, index, asked, demanded
                        ):
                            break  # what is not there yet would be waited for in the others, too
        finally:
            transfers.close()

    def _read(
        self,
        client: Client,
        session: str,
        node: int,
        index: LedgerIndex,
        asked: Asked,
        at_least: dict[int, int] | None = None,
        last: bool = False,
    ) -> bool:
        """Whether there is an answer; what comes of it is in the history."""
        begun = self.now()
        try:
            read = self._scan(client, session, node, index, asked, at_least or {}, last)
        except KeytideError as error:
            why = f"{error.problem_type}: {error}"
            self.history.refused.append(RefusedRead(node, index.name, begun, self.now(), error.status, why))
            return False
        self.history.reads.append(read)
        return True

    def _scan(
        self,
        client: Client,
        session: str,
        node: int,
        index: LedgerIndex,
        asked: Asked,
        at_least: dict[int, int],
        last: bool,
    ) -> SnapshotRead:
        request: dict[str, Any] = {**asked.request, "timeout_ms": 60_000} if last else {**asked.request}
        if at_least:
            request["at_least"] = {str(partition): offset for partition, offset in at_least.items()}
        begun = self.now()
        page = client.page(index.name, limit=_ROWS, **request)
        rows = [*page.rows]
        following = page
        while following.page is not None:  # the time ran out with some rows
            following = client.page(index.name, page=following.page)
            assert following.snapshot == page.snapshot, f"{index.name}: {following} follows {page}"
            rows += following.rows
        postings = (one for row in rows for one in index.postings(row, asked))
        return SnapshotRead(
            session,
            index.name,
            node,
            begun,
            self.now(),
            -1 if page.snapshot is None else page.snapshot,
            {int(partition): place["offset"] for partition, place in page.timestamp.items()},
            tuple(self._same.setdefault(one, one) for one in postings),
            asked.accounts,
            at_least,
            last,
        )


def _reads(chance: random.Random) -> Iterable[tuple[LedgerIndex, Asked]]:
    """Each index once, in some order; mostly all of it, now and then a half or another part."""
    for index in chance.sample(INDEXES, len(INDEXES)):
        part = index.part(chance) if index.part else index.everything
        yield index, chance.choices((index.everything, index.west, index.east, part), (4, 1, 1, 2))[0]


def _places(written: Iterable[TransferWrite]) -> dict[int, int]:
    """What shows all that was acknowledged: partition -> next offset."""
    places: dict[int, int] = {}
    for one in written:
        if one.ended is not None:
            places[one.partition] = max(places.get(one.partition, 0), one.offset + 1)
    return places


class _Transfers:
    """The documents of one writer."""

    def __init__(self, bootstrap: str, name: str, chance: random.Random) -> None:
        self._bootstrap, self._name, self._chance = bootstrap, name, chance
        self._versions: dict[str, int] = {}
        self._made = 0
        self._producer: KafkaProducer | None = None

    def close(self) -> None:
        if self._producer is not None:
            with suppress(*GIVES_UP):
                self._producer.close(timeout=2)
        self._producer = None

    def round(self, now: Callable[[], float]) -> list[TransferWrite]:
        """Write some documents, each once, and wait for what comes of it."""
        while len(self._versions) < _LIVE:
            self._versions[f"{self._name}-{self._made}"] = 0
            self._made += 1
        sent = []
        for id_ in self._chance.sample(sorted(self._versions), _ROUND):
            version = self._versions[id_] + 1
            postings = self._postings(id_, version)
            sent.append((id_, version, postings, now(), self._send(id_, version, postings)))
        written = []
        for id_, version, postings, begun, future in sent:
            try:
                if future is None:
                    raise OSError
                place = future.get(_DELIVERY_S + 5)
            except GIVES_UP:  # it may have been written all the same
                written.append(TransferWrite(id_, version, postings, begun))
                del self._versions[id_]
                continue
            self._versions[id_] = version
            written.append(TransferWrite(id_, version, postings, begun, now(), place.partition, place.offset))
        if any(one.ended is None for one in written):
            self.close()
        return written

    def _postings(self, id_: str, version: int) -> Postings:
        if version > 1 and self._chance.random() < 0.1:
            return NONE
        source, target = self._chance.sample(ACCOUNTS, 2)
        amount = self._chance.randrange(1, 100)
        return frozenset(
            (
                Posting(id_, source, -amount, version),
                Posting(id_, target, amount, version),
            )
        )

    def _send(self, id_: str, version: int, postings: Postings) -> Any:
        """A future of its place, None if it could not even be sent."""
        line = self._chance.random() < 0.5
        try:
            if self._producer is None:
                self._producer = KafkaProducer(
                    bootstrap_servers=self._bootstrap,
                    acks="all",
                    enable_idempotence=True,
                    max_block_ms=5_000,
                    request_timeout_ms=5_000,
                    delivery_timeout_ms=round(_DELIVERY_S * 1000),
                )
            value = json.dumps(document_of(postings, version, line)).encode() if postings else None
            return self._producer.send(TOPIC, key=id_.encode(), value=value)
        except GIVES_UP:
            return None
