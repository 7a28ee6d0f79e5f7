"""Readers of scans: sessions, pages, counts, held snapshots, any node as their endpoint.

What answers them is the real `indexer.scan.gather.service.ScanService` of each node, with its waits, its
choice of a snapshot and of replicas, its leases and tokens, on an event loop by the simulated clock
(`tests.simulation.scheduler`). Made here are the readers, and the way between nodes: what one asks another
takes a while now and then, and everything else goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from indexer.hosting.slice_runner import SliceRunner
from indexer.scan.gather.reads import WrittenAnswer
from indexer.scan.gather.service import ScanService
from indexer.scan.local.reader import LocalReader
from indexer.scan.peer.health import PeerHealth
from indexer.scan.peer.messages import (
    TIP,
    JointPage,
    JointRead,
    JointSpans,
    LeaseReply,
    LeaseRequest,
    ReadReply,
    ReadRequest,
)
from indexer.scan.plan.errors import IndexNotReadyError, PageSnapshotGoneError
from indexer.scan.plan.tokens import HeldToken, InvalidTokenError, PageToken, copies_of, verify
from indexer.scan.request.request import CountRequest, HoldRequest, ScanRequest
from keytide.errors import CallerError, HistoryChangedError, RetryableError
from keytide.http.node_protocol import NodeUnavailableError
from keytide.model.timestamp import Timestamp
from keytide.settings.settings import ScanSettings
from tests.simulation.chance import Chance
from tests.simulation.checkers import BrokenError, Rows
from tests.simulation.inline import InlineThreads
from tests.simulation.source import in_full, kept, layout, projection, spatial

if TYPE_CHECKING:
    from tests.simulation.nodes import SimNode
    from tests.simulation.world import World

SECRET = b"simulated"
SETTINGS = ScanSettings(first_lease_s=1, lease_s=2, max_hold_s=2)  # type: ignore[call-arg]
SESSIONS = 2
PAGE_ROWS = 1
AT_ONCE_MS = 1
PATIENCE_MS = (AT_ONCE_MS, AT_ONCE_MS, 60, 400)
"""How long a reader waits for an answer."""
SLOW_SHARE, SLOW_MS = 0.1, 40
"""How many requests between nodes take longer, and how long at most."""
HELD_READS = 3


class Journey:
    """What goes with a request wherever it goes.

    Attributes:
        chance: whatever is decided on its way.
        began: when it was asked.
        told: slice -> the timestamp of which it has answered last.
    """

    def __init__(self, chance: Chance, began: int) -> None:
        self.chance = chance
        self.began = began
        self.told: dict[int, Timestamp] = {}


JOURNEY: ContextVar[Journey] = ContextVar("journey")


class Answer(msgspec.Struct):
    """What is used of an answer."""

    snapshot: int | None
    timestamp: dict[int, dict[str, int]]
    session: str
    rows: list[dict[str, Any]] = []
    page: str | None = None
    count: int = 0
    at: str = ""


@dataclass(slots=True)
class Session:
    """One reader.

    Attributes:
        tokens: of the answers that nothing later covers.
        seen: the timestamps that they have shown.
    """

    tokens: list[str] = field(default_factory=list)
    seen: list[Timestamp] = field(default_factory=list)

    def forget(self) -> None:
        self.tokens, self.seen = [], []


@dataclass(slots=True)
class Pages:
    """A snapshot that is read more than once: page by page, or held.

    Attributes:
        rows: of the pages so far.
        token: of the next page, or of the hold.
        until: its snapshot is leased until then.
        copies: slice -> those of its copies that keep it.
        reads: of a hold, how many are left.
    """

    index: str
    token: str
    at: Timestamp
    until: int
    number: int
    incarnation: int
    copies: dict[int, list[SliceRunner]]
    rows: Rows = field(default_factory=dict)
    reads: int = 0


class Endpoint:
    """The scan endpoint of one node, and how it asks others (`indexer.scan.peer.messages.SliceReader`).

    Attributes:
        lives: of its node. When that has started again, nobody hears anything of this one any more.
    """

    def __init__(self, world: World, node: SimNode) -> None:
        self.world = world
        self.here = node.name
        self.health = PeerHealth()
        self.lives = node.lives

        def now() -> int:
            return world.mishaps.now(node.name)

        self.reader = LocalReader(node.node, 1_000, now=now)
        if spatial():
            self.reader.threads.close()
            self.reader.threads = InlineThreads()
        self.service = ScanService(node.node, self.reader, self, SETTINGS, wall=now, choose=_choose)

    def first_here(self, asked: JointRead) -> JointPage | None:
        self.check()
        page = self.reader.first(asked)
        if page is not None:
            self.world.seen["read as one"] += 1
            JOURNEY.get().told.update({number: one.timestamp for number, one in page.replies.items()})
        return page

    def within_here(self, asked: JointSpans) -> JointPage | None:
        return None

    async def read_here(self, request: ReadRequest) -> ReadReply:
        self.check()
        return self._told(request, await self.reader.read(request))

    async def read(self, node: str, request: ReadRequest, timeout_s: float) -> ReadReply:
        await self._reach(node, timeout_s)
        reply = await self.world.endpoint(node).reader.read(request)
        self.check()
        return self._told(request, reply)

    async def lease(self, node: str, request: LeaseRequest, timeout_s: float) -> LeaseReply:
        self.check()
        if node != self.here:
            await self._reach(node, timeout_s)
        return self.world.endpoint(node).reader.lease(request)

    def _told(self, request: ReadRequest, reply: ReadReply) -> ReadReply:
        JOURNEY.get().told.update({one.slice: one.timestamp for one in reply.slices})
        what = "tip" if request.consistency.number == TIP else "snapshot"
        self.world.seen[f"{what} not held"] += any(one.gone for one in reply.slices)
        return reply

    async def _reach(self, node: str, timeout_s: float) -> None:
        """What is asked arrives at another node."""
        self.check()
        world, chance = self.world, JOURNEY.get().chance
        if not world.storm:
            return
        takes = chance.below(SLOW_MS) if chance.happens(SLOW_SHARE) else 0
        takes = max(takes, world.nodes[node].silent_until - world.clock.now)
        if takes > 0:
            await asyncio.sleep(min(takes / 1000, timeout_s))
        if takes / 1000 > timeout_s:
            world.seen["scan without answer"] += 1
            raise NodeUnavailableError(f"node {node} did not answer", status=504, node=node)

    @property
    def dead(self) -> bool:
        return self.lives != self.world.nodes[self.here].lives

    def check(self) -> None:
        """Between two steps of a request."""
        if self.dead:
            raise asyncio.CancelledError


def _choose(nodes: Sequence[str]) -> str:
    return JOURNEY.get().chance.pick(nodes)


async def _stays() -> None:
    """A reader that does not go away."""
    await asyncio.get_running_loop().create_future()


Heard = Callable[[Answer, Journey], None]
"""What a reader does with an answer."""


class Readers:
    """All readers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sessions = [Session() for _ in range(SESSIONS)]
        self._asked = 0
        self.pages: list[Pages] = []

    def step(self) -> None:
        """One request or a few."""
        chance = self.world.chance
        endpoint = self.world.endpoint(chance.pick(sorted(self.world.nodes)))
        if self.pages and chance.happens(0.6):
            pages = self.pages[chance.below(len(self.pages))]
            if pages.reads:
                self._read_held(endpoint, pages)
            else:
                self._next_page(endpoint, pages)
            return
        session, name = self.sessions[chance.below(SESSIONS)], chance.pick(self.world.names())
        self._asked += 1
        if self._asked % 2:  # (without a chance of its own, which would make other histories of all plans)
            self._tip(endpoint, name, session)
        match self._asked % 8:
            case 2 | 6:
                self._count(endpoint, name, session)
            case 4:
                self._hold(endpoint, name, session)
        if self.scan(endpoint, name, session) and chance.below(2):
            self.scan(self.world.endpoint(chance.pick(sorted(self.world.nodes))), name, session)

    def scan(self, endpoint: Endpoint, name: str, session: Session, paged: bool = True) -> bool:
        """A first page; whether it was answered at once."""
        world = self.world
        limit = PAGE_ROWS if paged and world.chance.happens(0.4) else 1_000

        def heard(answer: Answer, journey: Journey) -> None:
            at = self._stable(name, "scan", answer, journey)
            rows = _entries(answer)
            if answer.page is None:
                world.checkers.scanned(name, rows, at, self._unseen(name, answer))
                return
            token = verify(answer.page, PageToken, SECRET)
            until = world.clock.now + SETTINGS.first_lease_s * 1_000
            self.pages.append(self._kept(name, answer.page, token, at, until, journey, rows))

        def ask(tokens: str | None, timeout_ms: int) -> Coroutine[Any, Any, WrittenAnswer]:
            request = ScanRequest(session=tokens, limit=limit, timeout_ms=timeout_ms)
            return endpoint.service.scan(name, request, _stays)

        return self._ask(endpoint, "scan", session, ask, heard, paged)

    def _tip(self, endpoint: Endpoint, name: str, session: Session) -> None:
        """A scan of the newest states, if it is answered."""
        world = self.world

        def heard(answer: Answer, journey: Journey) -> None:
            world.seen["tips"] += 1
            world.note("tip", name, _offsets(answer))

        def ask(tokens: str | None, timeout_ms: int) -> Coroutine[Any, Any, WrittenAnswer]:
            request = ScanRequest(session=tokens, consistency="tip", timeout_ms=timeout_ms)
            return endpoint.service.scan(name, request, _stays)

        self._ask(endpoint, "tip", session, ask, heard)

    def _count(self, endpoint: Endpoint, name: str, session: Session) -> None:
        """A count of all entries."""
        world = self.world

        def heard(answer: Answer, journey: Journey) -> None:
            world.seen["counts"] += 1
            at = self._stable(name, "count", answer, journey)
            if not self._unseen(name, answer):
                world.checkers.counted(name, answer.count, at)

        def ask(tokens: str | None, timeout_ms: int) -> Coroutine[Any, Any, WrittenAnswer]:
            request = CountRequest(session=tokens, timeout_ms=timeout_ms)
            return endpoint.service.count(name, request, _stays)

        self._ask(endpoint, "count", session, ask, heard)

    def _hold(self, endpoint: Endpoint, name: str, session: Session) -> None:
        """A snapshot that is held, to be read a few times."""
        world = self.world

        def heard(answer: Answer, journey: Journey) -> None:
            at = self._stable(name, "hold", answer, journey)
            token = verify(answer.at, HeldToken, SECRET)
            until = world.clock.now + SETTINGS.max_hold_s * 1_000
            self.pages.append(self._kept(name, answer.at, token, at, until, journey, {}, HELD_READS))

        def ask(tokens: str | None, timeout_ms: int) -> Coroutine[Any, Any, WrittenAnswer]:
            return endpoint.service.hold(name, HoldRequest(session=tokens, timeout_ms=timeout_ms), _stays)

        self._ask(endpoint, "hold", session, ask, heard)

    def _read_held(self, endpoint: Endpoint, pages: Pages) -> None:
        """All of a held snapshot; after the last time it is given back."""
        world = self.world

        def heard(answer: Answer, journey: Journey) -> None:
            world.seen["held"] += 1
            pages.reads -= 1
            pages.until = world.clock.now + SETTINGS.max_hold_s * 1_000
            world.checkers.paged(pages.index, _entries(answer), pages.at, self._unseen(pages.index, answer))
            if pages.reads:
                self.pages.append(pages)
            else:
                world.loop.create_task(endpoint.service.give_back(pages.index, pages.token, _stays))

        def ask(_: str | None, timeout_ms: int) -> Coroutine[Any, Any, WrittenAnswer]:
            request = ScanRequest(at=pages.token, timeout_ms=timeout_ms)
            return endpoint.service.scan(pages.index, request, _stays)

        self._ask_again(endpoint, pages, ask, heard)

    def _next_page(self, endpoint: Endpoint, pages: Pages) -> None:
        world = self.world

        def heard(answer: Answer, journey: Journey) -> None:
            world.seen["pages"] += 1
            pages.rows.update(_entries(answer))
            if answer.page is None:
                muted = world.repairs.unseen(pages.index, pages.number)
                world.checkers.paged(pages.index, pages.rows, pages.at, muted)
                return
            pages.token = answer.page
            pages.until = world.clock.now + SETTINGS.lease_s * 1_000
            self.pages.append(pages)

        def ask(_: str | None, timeout_ms: int) -> Coroutine[Any, Any, WrittenAnswer]:
            request = ScanRequest(page=pages.token, timeout_ms=timeout_ms)
            return endpoint.service.scan(pages.index, request, _stays)

        self._ask_again(endpoint, pages, ask, heard)

    # --- requests and answers -----------------------------------------------------------------------------

    def _ask(
        self,
        endpoint: Endpoint,
        what: str,
        session: Session,
        ask: Callable[[str | None, int], Coroutine[Any, Any, WrittenAnswer]],
        heard: Heard,
        patient: bool = True,
    ) -> bool:
        """Ask within a session; whether it was answered at once."""
        world = self.world
        tokens, seen = session.tokens, session.seen

        def told(answer: Answer, journey: Journey) -> None:
            shown = list(journey.told.values()) if answer.snapshot is None else [_timestamp(answer)]
            reached = Timestamp()
            for at in shown:
                for before in seen:
                    world.checkers.monotonic(",".join(tokens), before, at)
                reached = reached.merge_max(at)
            heard(answer, journey)
            # What came meanwhile this one does not cover.
            session.tokens = [one for one in session.tokens if one not in tokens] + [answer.session]
            session.seen = [one for one in session.seen if one not in seen] + [reached]

        def failed(error: Exception) -> None:
            if isinstance(error, HistoryChangedError):
                world.seen["history changed"] += 1
                session.forget()
            elif isinstance(error, PageSnapshotGoneError):
                raise BrokenError("Stable", f"a {what} that names no snapshot hears that its own is gone")
            else:
                world.seen[f"{what} {type(error).__name__}"] += 1

        timeout_ms = world.chance.pick(PATIENCE_MS) if patient else AT_ONCE_MS
        return self._send(endpoint, ask(",".join(tokens) or None, timeout_ms), told, failed, patient)

    def _ask_again(
        self,
        endpoint: Endpoint,
        pages: Pages,
        ask: Callable[[str | None, int], Coroutine[Any, Any, WrittenAnswer]],
        heard: Heard,
    ) -> None:
        """Read once more from a snapshot. One reader asks one thing after the other."""
        world = self.world
        self.pages.remove(pages)

        def failed(error: Exception) -> None:
            match error:
                case PageSnapshotGoneError() | InvalidTokenError():
                    world.snapshot_gone(pages, error.message)
                case HistoryChangedError():
                    world.seen["history changed"] += 1
                case IndexNotReadyError():
                    self.pages.append(pages)
                case _:
                    world.seen[f"page {type(error).__name__}"] += 1

        self._send(endpoint, ask(None, world.chance.pick(PATIENCE_MS)), heard, failed)

    def _send(
        self,
        endpoint: Endpoint,
        request: Coroutine[Any, Any, WrittenAnswer],
        heard: Heard,
        failed: Callable[[Exception], None],
        patient: bool = True,
    ) -> bool:
        """Have a node answer a request; whether it has at once. A reader without patience goes away then."""
        world = self.world
        began = world.clock.now
        journey = Journey(Chance(world.chance.below(1 << 31)), began)
        answered = []

        def done(task: asyncio.Task[WrittenAnswer]) -> None:
            if task.cancelled() or endpoint.dead:
                return
            try:
                body = task.result().body
            except (RetryableError, CallerError) as error:
                failed(error)
                return
            world.seen["scan waited"] += world.clock.now > began
            heard(msgspec.json.decode(body, type=Answer), journey)
            answered.append(True)

        context = copy_context()
        context.run(JOURNEY.set, journey)
        task = world.loop.create_task(request, context=context)
        task.add_done_callback(done)
        world.loop.run()
        if not patient and not task.done():
            task.cancel()
        return bool(answered)

    def _stable(self, name: str, what: str, answer: Answer, journey: Journey) -> Timestamp:
        """The one timestamp of a snapshot, with its topic."""
        world, at = self.world, _timestamp(answer)
        for one in journey.told.values():
            if one.offsets() == at.offsets():
                at = one
        world.note(what, name, answer.snapshot, at.offsets(), len(answer.rows), answer.count)
        return at

    def _kept(
        self,
        name: str,
        text: str,
        token: PageToken | HeldToken,
        at: Timestamp,
        until: int,
        journey: Journey,
        rows: Rows,
        reads: int = 0,
    ) -> Pages:
        nodes = self.world.nodes
        copies = {
            number: [
                runner
                for node in there
                if nodes[node].began <= journey.began  # (a restart loses what it has leased)
                and (runner := nodes[node].hosting.runners.get((token.index, number))) is not None
            ]
            for number, there in copies_of(token.nodes).items()
        }
        self.world.seen["kept on two copies"] += all(len(there) > 1 for there in copies.values())
        return Pages(name, text, at, until, token.number, token.incarnation, copies, rows, reads)

    def _unseen(self, name: str, answer: Answer) -> set[bytes]:
        """Documents that the answer may show wrong."""
        return self.world.repairs.unseen(name, -1 if answer.snapshot is None else answer.snapshot)


def _offsets(answer: Answer) -> dict[int, int]:
    return {partition: place["offset"] for partition, place in answer.timestamp.items()}


def _timestamp(answer: Answer) -> Timestamp:
    return Timestamp.of(_offsets(answer))


def _entries(answer: Answer) -> Rows:
    """The entries that rows stand for, in full: which tie an entry has, its row does not say."""
    found = [_entry(_key_of(row["key"][0]), row["id"], row["include"].get("v")) for row in answer.rows]
    entries = dict(found)
    if len(entries) < len(found):
        raise BrokenError("Untorn", f"rows come twice: {sorted(key for key, _ in found)}")
    return entries


def _key_of(key: Any) -> str:
    """A row's key as a document has it, in JSON."""
    return json.dumps(key if spatial() else [key])


@kept
@lru_cache(1_024)
def _entry(key: str, docid: str, value: int | None) -> tuple[bytes, bytes]:
    if value is None:  # of no document: something has spoilt it (`tests.simulation.repairs`)
        return b"?" + key.encode() + docid.encode(), b""
    made = projection(docid.encode(), b'{"k":%s,"v":%d}' % (key.encode(), value), layout())
    # (Of several cells all show the same.)
    (found,) = {in_full(stored + docid.encode(), packed) for puts in made.puts for stored, packed in puts}
    return found
