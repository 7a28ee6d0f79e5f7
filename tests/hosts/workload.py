"""Clients that never stand still, and what they did and saw, for the checker.

Writers transfer amounts between accounts; after each round they read the index in their session, through any
node, and demand what they have written (`at_least`). Readers read it through the node of one host, and demand
nothing. See `checker` for what a transfer is, and why a document is left alone once a write of it was not
acknowledged.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, Self

from kafka import KafkaProducer

from keytide.client import Client, Page
from keytide.errors import KeytideError
from keytide.process.worker import Worker
from tests.chaos.writing import GIVES_UP
from tests.hosts.checker import (
    NONE,
    ClientHistory,
    Posting,
    Postings,
    RefusedRead,
    SnapshotRead,
    TransferWrite,
)
from tests.hosts.cluster import TOKEN, HostWorld

TOPIC: Final = "ledger"
INDEX: Final = "ledger_postings"
_STATEMENT: Final = (
    f"CREATE INDEX {INDEX} ON {TOPIC} (UNNEST(postings)) INCLUDE (version) WITH (slices=3, defer_build=true)"
)
_ACCOUNTS: Final = 40
_ROWS: Final = 50_000
"""Of a page: all of them, so that an answer is one scan."""
_ROUND: Final = 10
"""Transfers that a writer makes before it reads."""
_LIVE: Final = 150
"""Documents that a writer changes; new ones take the place of those that it has to leave alone."""
_PAUSE_S: Final = 0.3
_DELIVERY_S: Final = 15.0
_END_S: Final = 60.0


def prepare(world: HostWorld) -> None:
    """The index, READY, on a topic without documents."""
    world.make_topic(TOPIC)
    world.sql(_STATEMENT)
    world.wait_ready(world.build(INDEX))


class Workload:
    """Clients in threads until it is left.

    Args:
        world: has the index (`prepare`), and no other clients write to its topic.
        seed: what is written follows from it.

    Attributes:
        history: what they did and saw so far.
    """

    def __init__(self, world: HostWorld, seed: int, writers: int = 2) -> None:
        self._world, self._seed = world, seed
        self._urls = world.cluster.node_urls
        self.history = ClientHistory()
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
        assert all(thread.wait(_END_S) for thread in self._threads), "a client stands still"
        self.check()

    def check(self) -> None:
        """Raise what a client ended with: nothing that it meets may end it."""
        for thread in self._threads:
            thread.check()

    def now(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def seen(self, since: float) -> list[int]:
        """The newest snapshot that the node of each host has answered from in reads that began since then;
        -1 for none."""
        recent = [one for one in self.history.reads[-500:] if one.begun >= since]
        return [
            max((one.snapshot for one in recent if one.node == host), default=-1)
            for host in range(len(self._urls))
        ]

    def read_end(self) -> None:
        """The last reads, of everything, through each node; the clients have ended."""
        ends = self._world.ends(TOPIC)
        for host, url in enumerate(self._urls):
            with Client(url, token=TOKEN) as client:
                self._read(client, f"end {host + 1}", host, ends, last=True)

    def _look(self, host: int) -> None:
        with Client(self._urls[host], token=TOKEN) as client:
            while not self._over.wait(_PAUSE_S):
                client.reset_session()
                begun = self.now()
                try:
                    self._read(client, f"reader {host + 1} at {begun:.3f} s", host)
                except KeytideError as error:
                    why = f"{error.status} {error.problem_type}: {error}"
                    self.history.refused.append(RefusedRead(host, begun, self.now(), why))

    def _write(self, number: int) -> None:
        urls = [*self._urls[number:], *self._urls[:number]]
        transfers = _Transfers(self._world.bootstrap, f"w{number}", random.Random(f"{self._seed} {number}"))
        try:
            with Client(urls, token=TOKEN) as client:
                while not self._over.wait(_PAUSE_S):
                    written = transfers.round(self.now)
                    self.history.writes += written
                    with suppress(KeytideError):  # it demands what may take until a host is back
                        self._read(client, f"writer {number}", -1, _places(written))
        finally:
            transfers.close()

    def _read(
        self,
        client: Client,
        session: str,
        node: int,
        at_least: dict[int, int] | None = None,
        last: bool = False,
    ) -> None:
        request: dict[str, Any] = {"timeout_ms": 60_000} if last else {}
        if at_least:
            request["at_least"] = {str(partition): offset for partition, offset in at_least.items()}
        begun = self.now()
        page = client.page(INDEX, limit=_ROWS, **request)
        assert page.page is None, f"there are more than {_ROWS} entries"
        read = SnapshotRead(
            session,
            node,
            begun,
            self.now(),
            -1 if page.snapshot is None else page.snapshot,
            {int(partition): place["offset"] for partition, place in page.timestamp.items()},
            self._postings(page),
            at_least or {},
            last,
        )
        self.history.reads.append(read)

    def _postings(self, page: Page) -> tuple[Posting, ...]:
        found = []
        for row in page.rows:
            account, amount = row.key[0]
            found.append(Posting(row.id, account, amount, row.include["version"]))
        return tuple(self._same.setdefault(one, one) for one in found)


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
        source, target = self._chance.sample(range(_ACCOUNTS), 2)
        amount = self._chance.randrange(1, 100)
        return frozenset(
            (
                Posting(id_, f"account{source}", -amount, version),
                Posting(id_, f"account{target}", amount, version),
            )
        )

    def _send(self, id_: str, version: int, postings: Postings) -> Any:
        """A future of its place, None if it could not even be sent."""
        document = {"version": version, "postings": [[one.account, one.amount] for one in sorted(postings)]}
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
            value = json.dumps(document).encode() if postings else None
            return self._producer.send(TOPIC, key=id_.encode(), value=value)
        except GIVES_UP:
            return None
