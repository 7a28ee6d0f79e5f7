"""A small cluster of indexer nodes in memory, for tests of scans: what its slices hold is set by hand.

Snapshots are sorted lists. A slice keeps the newest `KEPT` of them, the published one and what is leased,
like a real one. Entries go to slices by the rule of the router, written down here once more.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec
import xxhash

from indexer.scan.gather.gather import Gathered, gather
from indexer.scan.gather.holds import SnapshotHold
from indexer.scan.gather.reads import Reads
from indexer.scan.gather.scatter import Agreed, Target
from indexer.scan.gather.service import ScanService
from indexer.scan.local.cursor import EXAMINED
from indexer.scan.local.reader import LocalReader
from indexer.scan.peer.health import PeerHealth
from indexer.scan.peer.messages import (
    JointPage,
    JointRead,
    JointSpans,
    LeaseReply,
    LeaseRequest,
    ReadMessage,
    ReadReply,
    ReadRequest,
    encoder,
    lease_decoder,
    lease_reply_decoder,
    read_decoder,
    read_reply_decoder,
)
from indexer.scan.plan.selection import Selection
from indexer.scan.tasks import TASKS
from indexer.store.fold.worker import Folder
from indexer.store.formats.records import REMOVED
from indexer.store.interface import Applied, Row, SkipLine, SliceStore, StoredDocument, StoreSnapshot
from indexer.store.joint import LevelCursor, first_rows, rows_within
from indexer.view import SliceTrouble
from keytide.catalog.catalog import Catalog
from keytide.catalog.history import History
from keytide.catalog.records import (
    ClusterRecord,
    IndexRecord,
    KeyspaceRecord,
    Record,
    RollbackRecord,
    encode_record,
    record_key,
)
from keytide.collation import Value, encode_key, encode_part, key_forms
from keytide.definition.index import IndexDefinition
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.http.node_protocol import NodeUnavailableError, headers_of
from keytide.model.byte_columns import EntryColumns
from keytide.model.entry import pack_value
from keytide.model.timestamp import Place, Timestamp
from keytide.process.clock import now_ms
from keytide.settings.settings import ScanSettings
from keytide.wire.index_lists import WrittenSlice
from keytide.wire.messages import UniqueViolation
from tests.memory_store.store import MemorySliceStore
from tests.spans_by_rows import SpansByRows
from tests.store_kit import Version, lmdb_store, segments
from tests.structure_kit import as_stored

KEPT = 2
KEYSPACE = "users"
SECRET = "5e" * 32
PATIENT_MS = 60_000
"""How long requests wait that do not say it: a machine may be busy."""


older_decoder = msgspec.msgpack.Decoder(ReadMessage)
"""Of a release that knows of nothing that came later."""


def of_the_cluster(secret: str = SECRET) -> dict[str, str]:
    """The headers of a request from another part of the cluster."""
    return headers_of(secret, now_ms())


@dataclass(frozen=True)
class Doc:
    """One entry to be: key parts, document id, included columns as JSON."""

    key: Sequence[Value]
    id: str
    include: bytes | None = None

    def entry(self, directions: Sequence[bool]) -> tuple[bytes, bytes]:
        return (
            encode_key(self.key, directions) + self.id.encode(),
            pack_value(key_forms(self.key), self.include),
        )


class FakeSnapshot(SpansByRows):
    """A sorted list of entries at one commit; counts how often it is taken and given back."""

    def __init__(
        self, number: int, incarnation: int, timestamp: Timestamp, entries: list[tuple[bytes, bytes]]
    ) -> None:
        self.number = number
        self.incarnation = incarnation
        self.timestamp = timestamp
        self.entries = sorted(entries)
        self.readers = 0
        self.leases: dict[str, int] = {}
        self.back: dict[bytes, tuple[int, int]] = {}  # by document id; a test may fill it

    def rows(
        self,
        low: bytes,
        high: bytes | None,
        reverse: bool = False,
        limit: int | None = None,
        start_after: bytes | None = None,
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        assert self.readers > 0, "read without holding it"
        found = [entry for entry in self.entries if low <= entry[0] and (high is None or entry[0] < high)]
        if reverse:
            found.reverse()
        if start_after is not None:
            found = [e for e in found if (e[0] < start_after if reverse else e[0] > start_after)]
        found = found[:limit]
        for at in range(0, len(found), 3):  # several blocks, as a real store gives
            yield found[at : at + 3]

    def count(self, low: bytes, high: bytes | None) -> int:
        assert self.readers > 0, "counted without holding it"
        return sum(map(len, self.rows(low, high)))

    def back_rows(self, after: bytes = b"") -> Iterator[tuple[bytes, StoredDocument]]:
        """Of nobody: what fakes hold has no back index."""
        yield from ()

    foreign = 0

    def documents(self, ids: Sequence[bytes]) -> list[StoredDocument | None]:
        assert self.readers > 0, "asked without holding it"
        found = map(self.back.get, ids)
        return [None if one is None else StoredDocument(*one, 0, (b"",), False) for one in found]

    def skips(self, limit: int, after: tuple[int, int] | None = None) -> list[SkipLine]:
        return []

    def take(self) -> Self:
        self.readers += 1
        return self

    def release(self) -> None:
        assert self.readers > 0, "given back twice"
        self.readers -= 1


@dataclass
class FakeSlice:
    """The snapshots of one slice on one node, by number; `newest` is also its tip."""

    snapshots: dict[int, FakeSnapshot] = field(default_factory=dict)
    tip: FakeSnapshot | None = None

    def add(self, snapshot: FakeSnapshot, published: int) -> None:
        self.tip = snapshot
        if snapshot.number >= 0:
            self.snapshots[snapshot.number] = snapshot
        now = now_ms()
        keep = {*sorted(self.snapshots)[-KEPT:], published}
        self.snapshots = {
            number: one
            for number, one in self.snapshots.items()
            if number in keep or any(until > now for until in one.leases.values())
        }

    def step_back(self, history: History) -> None:
        """Drop what was rolled back."""
        self.snapshots = {n: s for n, s in self.snapshots.items() if history.number_holds(n, s.incarnation)}
        if self.tip is not None and not history.holds(self.tip.timestamp, self.tip.incarnation):
            self.tip = self.snapshots[max(self.snapshots)] if self.snapshots else None

    def restart(self) -> None:
        """Lose all snapshots and leases."""
        self.snapshots.clear()
        self.tip = None


class FakeJoint:
    """Some slices' snapshots, read as one."""

    def __init__(self, slices: Sequence[FakeSlice], number: int) -> None:
        self.slices, self.number = slices, number
        self.snapshots = [one.snapshots[number] for one in slices]
        self.incarnations = [one.incarnation for one in self.snapshots]
        self.timestamps = [one.timestamp for one in self.snapshots]

    def first(
        self, low: bytes, high: bytes | None, reverse: bool, count: int
    ) -> tuple[list[Row], list[int]] | None:
        with self._levels() as levels:
            return None if levels is None else first_rows(levels, low, high, reverse, count, REMOVED)

    def within(
        self, lows: Sequence[bytes], highs: Sequence[bytes], most: int, behind: int
    ) -> tuple[list[Row], list[int]] | None:
        with self._levels() as levels:
            return None if levels is None else rows_within(levels, lows, highs, most, REMOVED, behind)

    @contextmanager
    def _levels(self) -> Iterator[list[list[LevelCursor]] | None]:
        if [one.snapshots.get(self.number) for one in self.slices] != self.snapshots:
            yield None
            return
        with ExitStack() as held:
            for one in self.snapshots:
                held.callback(one.take().release)
            yield [levels for one in self.snapshots if (levels := one.levels()) is not None]


Keep = Callable[[int, int, Timestamp, list[tuple[bytes, bytes]]], FakeSnapshot]
"""(number, incarnation, timestamp, entries) -> the snapshot of a slice that holds them."""


class FakeView:
    """One node's part of the world, as `indexer.view.NodeView` shows it."""

    def __init__(self, node_id: str, world: World) -> None:
        self.node_id = node_id
        self.world = world
        self.slices: dict[tuple[str, int], FakeSlice] = {}
        self.publications: dict[str, int] = {}
        self.urls: dict[str, str] = {}
        self.callbacks: list[Callable[[], None]] = []
        self.looks = 0
        self.troubles: dict[tuple[str, int], SliceTrouble] = {}
        self.damaged: dict[tuple[str, int], str] = {}
        self.doubted: dict[tuple[str, int], str] = {}
        self.older: Catalog | None = None
        self.lagging: dict[tuple[str, int], frozenset[str]] = {}

    def catalog(self) -> Catalog:
        """The world's, or an older one that the node has not read on from."""
        return self.older or self.world.catalog

    def history(self, index: str) -> History:
        return History.of(self.catalog(), KEYSPACE)

    def published(self, index: str) -> int | None:
        self.looks += 1
        number = self.publications.get(index)
        return None if number is None or self.stamp(KEYSPACE, number) is None else number

    def behind(self, index: str, slice_number: int) -> frozenset[str]:
        return self.lagging.get((index, slice_number), frozenset())

    def stamp(self, keyspace: str, number: int) -> tuple[int, Timestamp, int] | None:
        """As `indexer.hosting.core.control` keeps it: of the node's history only."""
        stamp = self.world.stamps.get(number) if keyspace == KEYSPACE else None
        history = self.history("")
        known = (
            stamp is not None and stamp[0] <= history.incarnation and history.number_holds(number, stamp[0])
        )
        return stamp if known else None

    def violations(self, index: str, slice_number: int) -> Sequence[UniqueViolation] | None:
        return ()

    def written(self, index: str, slice_number: int) -> WrittenSlice | None:
        return WrittenSlice(slice_number) if (index, slice_number) in self.slices else None

    def trouble(self, index: str, slice_number: int) -> SliceTrouble | None:
        return self.troubles.get((index, slice_number))

    def export(self, index: str, slice_number: int) -> None:
        """Fakes have no store that could be copied."""

    def report_damage(self, index: str, slice_number: int, reason: str) -> None:
        """The slice is taken out of service, as the ingest thread does."""
        self.damaged[index, slice_number] = reason
        self.troubles[index, slice_number] = SliceTrouble("LOST", reason)
        self.slices[index, slice_number].restart()

    def report_doubt(self, index: str, slice_number: int, reason: str) -> None:
        """Nothing examines the slice: it serves on."""
        self.doubted[index, slice_number] = reason

    def _slice(self, index: str, number: int) -> FakeSlice:
        return self.slices.get((index, number), FakeSlice())

    def acquire(self, index: str, slice_number: int, number: int) -> FakeSnapshot | None:
        return _taken(self._slice(index, slice_number).snapshots.get(number))

    def joint(self, index: str, slices: Sequence[int], number: int) -> FakeJoint | None:
        held = [self._slice(index, one) for one in slices]
        return FakeJoint(held, number) if all(number in one.snapshots for one in held) else None

    def tip(self, index: str, slice_number: int) -> FakeSnapshot | None:
        held = self._slice(index, slice_number)
        return _taken(held.tip if held.snapshots else None)  # (else it has restarted, and joined no number)

    def built(self, index: str, slice_number: int, build: str) -> None:
        """Fakes are of no build that goes on."""

    def newest(self, index: str, slice_number: int) -> int:
        return max(self._slice(index, slice_number).snapshots, default=-1)

    def lease(self, index: str, slice_number: int, number: int, holder: str, until: int) -> bool:
        snapshot = self._slice(index, slice_number).snapshots.get(number)
        if snapshot is None or (index, slice_number, number) in self.world.unleasable:
            return False
        snapshot.leases[holder] = until
        return True

    def node_url(self, node: str) -> str | None:
        return self.urls.get(node)

    def on_published(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)


def _taken(snapshot: FakeSnapshot | None) -> FakeSnapshot | None:
    return None if snapshot is None else snapshot.take()


class DirectNodes:
    """Asks the world's nodes without HTTP, but through the bytes that HTTP would carry.

    Attributes:
        down: nodes that cannot be reached.
        silent: nodes that do not answer.
        joint: whether the entries of some spans are read as one.
        older: nodes of a release that knows of no bound in bytes.
    """

    def __init__(self, view: FakeView, readers: dict[str, LocalReader]) -> None:
        self.here = view.node_id
        self.health = PeerHealth(view.behind)
        self.readers = readers
        self.joint = False
        self.down: set[str] = set()
        self.silent: set[str] = set()
        self.older: set[str] = set()
        self.reads: list[tuple[str, ReadRequest]] = []
        self.leases: list[tuple[str, LeaseRequest]] = []

    def first_here(self, asked: JointRead) -> JointPage | None:
        """Never: what is read as one has its own tests, and here requests are counted."""
        return None

    def within_here(self, asked: JointSpans) -> JointPage | None:
        """Never, too, but in worlds whose tests ask for it."""
        return self.readers[self.here].within(asked) if self.joint else None

    async def read_here(self, request: ReadRequest) -> ReadReply:
        return await self.read(self.here, request, 0.0)

    async def read(self, node: str, request: ReadRequest, timeout_s: float) -> ReadReply:
        await self._reach(node, timeout_s)
        self.reads.append((node, request))
        decoder = older_decoder if node in self.older and not request.shape.keys else read_decoder
        message = decoder.decode(encoder.encode(ReadMessage.of(request)))
        reply = await self.readers[node].read(message.request())
        return read_reply_decoder.decode(encoder.encode(reply))

    async def lease(self, node: str, request: LeaseRequest, timeout_s: float) -> LeaseReply:
        await self._reach(node, timeout_s)
        self.leases.append((node, request))
        reply = self.readers[node].lease(lease_decoder.decode(encoder.encode(request)))
        return lease_reply_decoder.decode(encoder.encode(reply))

    async def _reach(self, node: str, timeout_s: float) -> None:
        if node in self.silent:
            await asyncio.sleep(timeout_s)
        if node in self.down | self.silent:
            raise NodeUnavailableError(f"node {node} is down", node=node)


class World:
    """Nodes, one keyspace, indexes, and the snapshots that the test commits.

    Args:
        node_count: nodes `n0`, `n1`, ...; slices go to them in turn.
        statements: CREATE INDEX statements on `users`.
        replicas: further copies of each slice.

    Attributes:
        now: the clock that leases go by, ms.
    """

    def __init__(
        self,
        *statements: str,
        node_count: int = 2,
        replicas: int = 0,
        partitions: int = 2,
        secret: str = SECRET,
    ) -> None:
        self.now: Callable[[], int] = now_ms
        self.catalog = Catalog()
        self.stamps: dict[int, tuple[int, Timestamp, int]] = {}
        self.unleasable: set[tuple[str, int, int]] = set()
        self.incarnation = 0
        self.views = {f"n{at}": FakeView(f"n{at}", self) for at in range(node_count)}
        for view in self.views.values():
            view.urls = {name: f"http://127.0.0.1/{name}" for name in self.views}
        self.documents: dict[str, list[Doc]] = {}
        self.keep: Keep = FakeSnapshot
        self.examined = EXAMINED
        self.partitions = partitions
        self.record(ClusterRecord("c", secret, 0))
        self.record(KeyspaceRecord(KEYSPACE, "t", partitions, 1))
        for statement in statements:
            self.create(statement, replicas)

    # --- metadata -------------------------------------------------------------

    def record(self, record: Record) -> None:
        self.catalog.apply(record_key(record), encode_record(record), self.catalog.offset)

    def create(
        self, statement: str, replicas: int = 0, state: Any = "READY", replaces: str = ""
    ) -> IndexRecord:
        definition = definition_of(statement)
        names = list(self.views)
        placement = [
            [names[(number + copy) % len(names)] for copy in range(replicas + 1)]
            for number in range(definition.slices)
        ]
        splits = definition.encoded_splits
        record = IndexRecord(
            f"{definition.name}-{int(replaces.rsplit('-')[-1]) + 1 if replaces else 1}",
            definition,
            state,
            1,
            placement,
            "b1",
            0,
            splits=splits,
            replaces=replaces,
        )
        self.record(record)
        for number, nodes in enumerate(placement):
            for node in nodes:
                self.views[node].slices[record.id, number] = FakeSlice()
        return record

    def index(self, name: str) -> IndexRecord:
        record = self.catalog.index_by_name(name)
        assert record is not None
        return record

    def change(self, name: str, **changes: Any) -> None:
        """Replace members of an index's record."""
        self.record(msgspec.structs.replace(self.index(name), **changes))
        self.tell()

    def roll_back(self, to: int = -1, *, slices: bool = True, lost: dict[int, Place] | None = None) -> None:
        """The keyspace gets a new incarnation; snapshots of it must be committed anew.

        Args:
            to: snapshot number, -1 for none: the topic was made anew.
            slices: whether the slices have stepped back already.
        """
        self.incarnation += 1
        timestamp = self.stamps[to][1] if to >= 0 else Timestamp()
        cause: Any = "truncated" if to >= 0 else "recreated"
        self.record(
            RollbackRecord(KEYSPACE, self.incarnation, to, timestamp, "t", cause, now_ms(), lost or {})
        )
        self.record(KeyspaceRecord(KEYSPACE, "t", self.partitions, 1, self.incarnation))
        if slices:
            for one in [one for view in self.views.values() for one in view.slices.values()]:
                one.step_back(History.of(self.catalog, KEYSPACE))
        self.tell()

    def lag(self, node: str) -> None:
        """A node reads no more of the metadata."""
        self.views[node].older = self.catalog.copy()

    def catch_up(self, node: str) -> None:
        self.views[node].older = None
        self.tell()

    # --- snapshots ------------------------------------------------------------

    def commit(
        self,
        number: int,
        documents: dict[str, Iterable[Doc]],
        *,
        offsets: dict[int, int] | None = None,
        fresh_at: int | None = None,
        publish: bool = True,
        skip: Iterable[tuple[str, int]] = (),
    ) -> None:
        """Commit a snapshot of every index on all slices (but those in `skip`), and publish it."""
        timestamp = Timestamp.of(offsets if offsets is not None else {0: number, 1: number})
        self.stamps[number] = (self.incarnation, timestamp, now_ms() if fresh_at is None else fresh_at)
        left_out = set(skip)
        for name, docs in documents.items():
            record = self.index(name)
            self.documents[name] = list(docs)
            for slice_number, entries in enumerate(sliced(record.definition, self.documents[name])):
                for node, view in self.views.items():
                    held = view.slices.get((record.id, slice_number))
                    if held is None or (node, slice_number) in left_out:
                        continue
                    snapshot = self.keep(number, self.incarnation, timestamp, entries)
                    held.add(snapshot, view.publications.get(record.id, -1))
            if publish:
                self.publish(name, number)

    def publish(self, name: str, number: int, nodes: Iterable[str] | None = None) -> None:
        """Announce a common number to all nodes, or some."""
        for node in self.views if nodes is None else nodes:
            self.views[node].publications[self.index(name).id] = number
        self.tell()

    def tell(self) -> None:
        """Tell the endpoints that something changed, from another thread as the ingest thread does."""
        callbacks = [callback for view in self.views.values() for callback in view.callbacks]
        if callbacks:
            thread = threading.Thread(target=lambda: [callback() for callback in callbacks])
            thread.start()
            thread.join()

    def held(self) -> list[FakeSnapshot]:
        """All snapshots of all slices."""
        slices = [one for view in self.views.values() for one in view.slices.values()]
        return [snapshot for one in slices for snapshot in one.snapshots.values()]

    # --- endpoints ------------------------------------------------------------

    def services(self, settings: ScanSettings | None = None) -> dict[str, ScanService]:
        """An endpoint per node; call it on the event loop. `nodes` keeps what they ask each other."""
        settings = settings or ScanSettings.model_validate({"default_timeout_ms": PATIENT_MS})
        readers = {
            name: LocalReader(
                view,
                settings.max_leases,
                TASKS,
                examined=self.examined,
                client_leases=settings.max_client_leases,
                now=lambda: self.now(),
            )
            for name, view in self.views.items()
        }
        self.nodes = {name: DirectNodes(view, readers) for name, view in self.views.items()}
        return {
            name: ScanService(view, readers[name], self.nodes[name], settings)
            for name, view in self.views.items()
        }


async def pages_at(
    shared: Reads,
    held: SnapshotHold,
    selection: Selection,
    limit: int,
    *,
    reverse: bool = False,
    offset: int = 0,
    room: int = 0,
) -> AsyncIterator[Agreed[Gathered]]:
    """All pages of a selection at a held snapshot."""
    after, more = b"", True

    async def work(target: Target) -> Gathered:
        return await gather(target, shared.nodes, after, reverse, limit, offset, room)

    while more:
        agreed = await shared.holds.read(held, selection, 30.0, work)
        yield agreed
        page = agreed.gathered
        after, offset, more = page.reached, page.offset_left, page.more


def definition_of(statement: str) -> IndexDefinition:
    parsed = parse_statement(statement)
    assert isinstance(parsed, CreateIndex)
    return parsed.definition


def sliced(definition: IndexDefinition, documents: Iterable[Doc]) -> list[list[tuple[bytes, bytes]]]:
    """The entries of each slice."""
    slices: list[list[tuple[bytes, bytes]]] = [[] for _ in range(definition.slices)]
    for document in documents:
        key = encode_key(document.key, definition.descending)
        for stored, value in as_stored(definition, [(key, key_forms(document.key), document.include)]):
            slices[slice_of(definition, document, stored)].append((stored + document.id.encode(), value))
    return slices


def slice_of(definition: IndexDefinition, document: Doc, stored: bytes = b"") -> int:
    """The slice that an entry goes to."""
    part = definition.partition_part
    spread = definition.spread or (1,) * definition.slices
    if definition.partitioned_by_cell:
        cell = encode_part(int.from_bytes(stored, "big"))
        at = sum(cell >= split for split in definition.encoded_splits)
    elif definition.partition_kind == "range":
        value = document.id if part is None else document.key[part]
        at = sum(encode_part(value) >= split for split in definition.encoded_splits)
    else:
        routed_by = document.id.encode() if part is None else encode_part(document.key[part])
        at = xxhash.xxh3_64_intdigest(routed_by) % len(spread)
    return sum(spread[:at]) + xxhash.xxh3_64_intdigest(document.id.encode()) % spread[at]


@contextmanager
def stores(kind: str, folder: Path, folds: Folder) -> Iterator[Keep]:
    """Snapshots of real stores for `World.keep`: `memory` or `lmdb`, closed at the end."""
    opened: list[SliceStore] = []

    def keep(number: int, incarnation: int, timestamp: Timestamp, entries: list[Row]) -> FakeSnapshot:
        place = folder / str(len(opened))
        store: SliceStore = MemorySliceStore(Applied()) if kind == "memory" else lmdb_store(place, folds)
        opened.append(store)
        of_document: dict[bytes, list[Row]] = {}
        for key, value in entries:
            docid = key[key.rindex(b"d") :]  # ids of the tests that use this are "d" and digits
            of_document.setdefault(docid, []).append((key[: -len(docid)], value))
        versions = [
            Version(docid, 0, at, entries=tuple(rows)) for at, (docid, rows) in enumerate(of_document.items())
        ]
        for at, one in enumerate((versions[::2], versions[1::2])):
            store.apply(segments(one), Applied(timestamp, number, queue_position=at))
        return StoredSnapshot(number, incarnation, timestamp, entries, store.snapshot())

    yield keep
    for store in opened:
        store.close()


class StoredSnapshot(FakeSnapshot):
    """Reads a real store's snapshot."""

    def __init__(
        self, number: int, incarnation: int, timestamp: Timestamp, entries: list[Row], stored: StoreSnapshot
    ) -> None:
        super().__init__(number, incarnation, timestamp, entries)
        self.stored = stored

    def rows(
        self,
        low: bytes,
        high: bytes | None,
        reverse: bool = False,
        limit: int | None = None,
        start_after: bytes | None = None,
    ) -> Iterator[list[Row]]:
        assert self.readers > 0, "read without holding it"
        return self.stored.rows(low, high, reverse, limit, start_after)

    def rows_of(
        self,
        spans: Sequence[tuple[bytes, bytes | None]],
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[list[Row]]:
        assert self.readers > 0, "read without holding it"
        return self.stored.rows_of(spans, reverse, limit)

    def entry_columns(
        self, spans: Sequence[tuple[bytes, bytes | None]], reverse: bool, limit: int
    ) -> Iterator[EntryColumns]:
        assert self.readers > 0, "read without holding it"
        return self.stored.entry_columns(spans, reverse, limit)

    def count(self, low: bytes, high: bytes | None) -> int:
        return self.stored.count(low, high)
