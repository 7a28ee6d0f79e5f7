"""Readers of stable scans: sessions, pages, any node as their endpoint. The choice of the snapshot, the
reading and merging of slices, leases, tokens: the real ones, without an event loop (nothing here waits)."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from indexer.hosting.slice_runner import SliceRunner
from indexer.scan.gather import gather as gathering
from indexer.scan.gather import scatter
from indexer.scan.gather.scatter import Target
from indexer.scan.local.effort import ReadThreads
from indexer.scan.local.reader import LocalReader
from indexer.scan.peer.messages import LeaseReply, LeaseRequest, ReadReply, ReadRequest
from indexer.scan.plan.directory import IndexDirectory, Scannable
from indexer.scan.plan.errors import IndexNotReadyError, SnapshotMissingError
from indexer.scan.plan.leases import LeaseRegistry
from indexer.scan.plan.tokens import PageToken, Seen, SessionToken, newest, saw_tip, sign, verify
from indexer.scan.request.request import Question
from keytide.collation import Span
from keytide.errors import CallerError, HistoryChangedError, RetryableError
from keytide.model.timestamp import Timestamp
from tests.simulation.source import KEYSPACE, SLICES

if TYPE_CHECKING:
    from tests.simulation.nodes import SimNode
    from tests.simulation.world import World

SECRET = b"simulated"
LEASE_MS = 1_500
SESSIONS = 2
PAGE_ROWS = 1
_WHOLE = [Span(b"", None)]
_T = TypeVar("_T")


def drive(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        result: _T = done.value
        return result
    raise RuntimeError("a coroutine waits in the simulation")


async def _ask_all(
    nodes: Endpoint, requests: dict[str, ReadRequest], timeout_s: float
) -> dict[str, ReadReply]:
    """In place of asking other nodes side by side."""
    return {node: await nodes.read(node, request, timeout_s) for node, request in requests.items()}


def install() -> None:
    """Have the real gathering ask without an event loop, in this process."""
    scatter._ask_all = _ask_all  # type: ignore[assignment]


class SlowReader(LocalReader):
    """The real reader of a node's slices, by the simulated clock."""

    def __init__(self, world: World, node: SimNode) -> None:
        self._world = world
        self._view = node.node
        self._leases = LeaseRegistry(node.node, 1_000)
        self.threads = ReadThreads(1)  # (short reads take none of their threads)

    def _now(self) -> int:
        return self._world.mishaps.now(self._view.node_id)


@dataclass(slots=True)
class Session:
    """One reader.

    Attributes:
        token: as the endpoint gave it, "" at first.
        at: the newest timestamp that it was shown.
        tip: what covers all newest states that it was shown.
    """

    token: str = ""
    at: Timestamp | None = None
    tip: Timestamp | None = None


@dataclass(slots=True)
class Pages:
    """A scan that is read page by page.

    Attributes:
        rows: of the pages so far.
        until: its snapshot is leased until then.
        runners: the slices that hold it.
    """

    index: str
    token: str
    at: Timestamp
    until: int
    number: int
    incarnation: int
    runners: list[SliceRunner]
    rows: dict[bytes, bytes] = field(default_factory=dict)


class Endpoint:
    """The scan endpoint of one node (`indexer.scan.peer.messages.SliceReader`)."""

    def __init__(self, world: World, node: SimNode) -> None:
        self.world = world
        self.here = node.name
        self.lives = node.lives
        self.reader = SlowReader(world, node)
        self.directory = IndexDirectory(node.node)
        self.view = node.node

    async def read_here(self, request: ReadRequest) -> ReadReply:
        return await self.reader.read(request)

    async def read(self, node: str, request: ReadRequest, timeout_s: float) -> ReadReply:
        return await self.world.endpoint(node).reader.read(request)

    async def lease(self, node: str, request: LeaseRequest, timeout_s: float) -> LeaseReply:
        return self.world.endpoint(node).reader.lease(request)


class Readers:
    """All readers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sessions = [Session() for _ in range(SESSIONS)]
        self._asked = 0
        self.pages: list[Pages] = []

    def step(self) -> None:
        """One request."""
        chance = self.world.chance
        endpoint = self.world.endpoint(chance.pick(sorted(self.world.nodes)))
        if self.pages and chance.happens(0.6):
            self._next_page(endpoint, self.pages[chance.below(len(self.pages))])
            return
        session, name = self.sessions[chance.below(SESSIONS)], chance.pick(self.world.names())
        self._asked += 1
        if self._asked % 2:  # (without a chance of its own, which would make other histories of all plans)
            self.tip(endpoint, name, session)
        if self.scan(endpoint, name, session) and chance.below(2):
            self.scan(self.world.endpoint(chance.pick(sorted(self.world.nodes))), name, session)

    def scan(self, endpoint: Endpoint, name: str, session: Session, paged: bool = True) -> bool:
        """A first page; whether it was answered."""
        world = self.world
        seen: Seen = {}
        if session.token:
            seen = verify(session.token, SessionToken, SECRET).seen
        limit = PAGE_ROWS if paged and world.chance.happens(0.4) else 1_000
        try:
            index = endpoint.directory.index(name)
            stamp, lacking = endpoint.directory.newest_stamp(index, Question(), seen, {})
            if stamp is None or lacking is not None:
                world.seen["scan waits for " + str(lacking)[:22]] += 1
                return False
            nodes = {number: world.chance.pick(index.placement[number]) for number in range(SLICES)}
            target = Target(
                index.id,
                stamp.number,
                stamp.incarnation,
                _WHOLE,
                nodes,
                1.0,
                LEASE_MS,
                in_order=index.shape.in_order,
            )
            found = drive(gathering.gather(target, endpoint, b"", False, limit))
            if found.more:
                self._keep_everywhere(endpoint, target, found.leased)
        except HistoryChangedError:
            world.seen["history changed"] += 1
            session.token, session.at, session.tip = "", None, None
            return False
        except (SnapshotMissingError, RetryableError, CallerError) as error:
            world.seen[type(error).__name__] += 1
            return False
        at = self._one_timestamp(
            index, stamp.timestamp, [reply.timestamp for reply in found.replies.values()]
        )
        rows = dict(found.entries)
        world.note("scan", name, stamp.number, stamp.incarnation, at.offsets(), len(rows))
        for before in (session.at, session.tip):
            world.checkers.monotonic(session.token, before, at)
        seen = newest(seen, {KEYSPACE: (stamp.number, stamp.incarnation)}, endpoint.directory.history)
        session.token, session.at = sign(SessionToken(seen), SECRET), at
        if not found.more:
            world.checkers.scanned(name, rows, at, world.repairs.unseen(name, stamp.number))
            return True
        token = PageToken(
            index.id,
            stamp.number,
            stamp.incarnation,
            stamp.fresh_at,
            [(b"", None)],
            list(target.by_node().items()),
            found.entries[-1][0],
            False,
            limit,
            None,
            seen,
            in_order=target.in_order,
        )
        runners = [world.nodes[node].hosting.runners[index.id, number] for number, node in nodes.items()]
        self.pages.append(
            Pages(
                name,
                sign(token, SECRET),
                at,
                world.clock.now + LEASE_MS,
                stamp.number,
                stamp.incarnation,
                runners,
                rows,
            )
        )
        return True

    def tip(self, endpoint: Endpoint, name: str, session: Session) -> None:
        """A scan of the newest states, if it is answered."""
        world = self.world
        seen: Seen = verify(session.token, SessionToken, SECRET).seen if session.token else {}
        try:
            index = endpoint.directory.index(name)
            stamp, lacking = endpoint.directory.newest_stamp(index, Question(consistency="tip"), seen, {})
            if stamp is None or lacking is not None:
                return
            nodes = {number: index.placement[number][0] for number in range(SLICES)}
            saw = seen.get(KEYSPACE, ())
            target = Target(index.id, stamp.number, stamp.incarnation, _WHOLE, nodes, 1.0, saw=saw)
            found = drive(gathering.gather(target, endpoint, b"", False, 1_000))
        except HistoryChangedError:
            world.seen["history changed"] += 1
            session.token, session.at, session.tip = "", None, None
            return
        except (SnapshotMissingError, RetryableError, CallerError) as error:
            world.seen[f"tip {type(error).__name__}"] += 1
            return
        world.seen["tips"] += 1
        reached = Timestamp()
        for reply in found.replies.values():
            for before in (session.at, session.tip):
                world.checkers.monotonic(session.token, before, reply.timestamp)
            reached = reached.merge_max(reply.timestamp)
        world.note("tip", name, stamp.incarnation, reached.offsets())
        seen = newest(seen, {KEYSPACE: saw_tip(stamp.incarnation, reached)}, endpoint.directory.history)
        session.token, session.tip = sign(SessionToken(seen), SECRET), reached

    def _next_page(self, endpoint: Endpoint, pages: Pages) -> None:
        world = self.world
        token = self.token_of(endpoint, pages)
        try:
            index = endpoint.directory.index(pages.index)
            index.check_snapshot(token.index, token.number, token.incarnation, {})
            nodes = {number: node for node, slices in token.nodes for number in slices}
            target = Target(
                token.index,
                token.number,
                token.incarnation,
                _WHOLE,
                nodes,
                1.0,
                LEASE_MS,
                in_use=True,
                in_order=token.in_order,
            )
            found = drive(gathering.gather(target, endpoint, token.after, False, token.limit))
            if found.more:
                self._keep_everywhere(endpoint, target, found.leased)
        except SnapshotMissingError as missing:
            self.pages.remove(pages)
            world.snapshot_gone(pages, missing)
            return
        except HistoryChangedError:
            world.seen["history changed"] += 1
            self.pages.remove(pages)
            return
        except IndexNotReadyError:
            return
        except (RetryableError, CallerError) as error:
            world.seen[type(error).__name__] += 1
            self.pages.remove(pages)
            return
        pages.rows.update(found.entries)
        world.seen["pages"] += 1
        if found.more:
            pages.token = sign(replace(token, after=found.entries[-1][0]), SECRET)
            pages.until = world.clock.now + LEASE_MS
            return
        self.pages.remove(pages)
        muted = world.repairs.unseen(pages.index, pages.number)
        world.checkers.paged(pages.index, pages.rows, pages.at, muted)

    def token_of(self, endpoint: Endpoint, pages: Pages) -> PageToken:
        """What the token says."""
        return verify(pages.token, PageToken, SECRET)

    def _keep_everywhere(self, endpoint: Endpoint, target: Target, leased: set[int]) -> None:
        wanted = target.by_node(sorted(target.nodes.keys() - leased))
        for node, slices in wanted.items():
            request = LeaseRequest(
                target.index, target.number, target.incarnation, slices, target.lease_ms, target.in_use
            )
            missing = drive(endpoint.lease(node, request, 1.0)).missing
            if missing:
                raise SnapshotMissingError(missing[0], node, -1)

    def _one_timestamp(self, index: Scannable, stamp: Timestamp, found: list[Timestamp]) -> Timestamp:
        for one in found:
            if one.offsets() != found[0].offsets():
                self.world.broken("Untorn", f"a scan of {index.name} reads {one} and {found[0]}")
        return found[0] if found else stamp
