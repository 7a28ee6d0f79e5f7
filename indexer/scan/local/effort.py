"""How much of the node a long read may take: its time, its turns, and that it gives way.

Theory of operation
===================
Python runs one thread at a time, so work that is merely moved to a thread still stands in the way of the
event loop. Long reads therefore go in *turns*: a read does some entries, says where it got to (`spent`), and
whoever asked comes again, behind those that wait. The first turn of a read is short and has threads of its
own, so that what is soon done is never behind what is not; later turns share few threads (`ReadThreads`).
What shapes take to be made ready can neither be cut nor given up, and may be tenths of a second: it has
threads of its own, and nothing else waits for its end.

Within a turn the work is cut into *parts* of about half a millisecond (`ReadBudget.parts`), whatever an entry
costs. Between them it looks whether its request is over (`OutOfTimeError`) or nobody waits for it any more
(`GivenUpError`). While other requests are being answered a thread that has worked rests there, so that they
find the interpreter free for four fifths of the time. And only one thread works at a time (`FairLock`), for a
short read gives the interpreter away hundreds of times (whenever it calls LMDB or the system): with five
threads at work it would wait behind all of them. As Python runs one at a time anyway, that costs long reads
nothing (measured).

A thread's priority is not lowered: one that holds the interpreter and gets no processor would stop all
others.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic, thread_time
from typing import Final, Generic, TypeVar

from indexer.scan.peer.messages import OutOfTimeError
from indexer.scan.plan.waiting import Gone, ReaderGoneError

READERS: Final = 4
"""Threads for first turns and for what is bounded by itself: two cores' worth, and some that wait for the
disk."""
SHAPERS: Final = 2
"""Threads for shapes of requests: GEOS leaves the interpreter alone for most of the time."""
FIRST_TURN_S: Final = 0.01
TURN_S: Final = 0.04
"""How long a later turn is at least: coming again costs a millisecond or two."""
LONGEST_TURN_S: Final = 0.2
"""How long it is while nobody waits for a turn."""
PART_S: Final = 0.00025
"""About what the event loop waits for the interpreter at most (`serve.process.SWITCH_INTERVAL_S`)."""
REST_S: Final = 0.002
HELD_S: Final = 0.005
"""How long one thread works before the next one does, while nobody else is about."""
OTHERS_S: Final = 0.05
"""How long after a short request there are taken to be others about."""
FIRST_PART: Final = 64
LARGEST_PART: Final = 8_192

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class GivenUpError(Exception):
    """Nobody waits for this work any more. Never answered to anybody."""


class FairLock:
    """A lock of threads that is handed over to whoever has waited longest (one of Python's own may go to the
    thread that has just let go of it, for ever). A thread that has it may take it again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder = 0
        self._since = 0.0
        self._waiting: deque[tuple[int, threading.Lock]] = deque()

    def take(self) -> None:
        """Wait for it, unless this thread has it."""
        me = threading.get_ident()
        with self._lock:
            if self._holder == me:
                return
            if not self._holder:
                self._holder, self._since = me, monotonic()
                return
            called = threading.Lock()
            called.acquire()
            self._waiting.append((me, called))
        called.acquire()

    def give(self, after_s: float = 0.0) -> None:
        """Hand it on, if this thread has it, for at least so long."""
        with self._lock:
            now = monotonic()
            if self._holder != threading.get_ident() or now < self._since + after_s:
                return
            self._holder = 0
            if self._waiting:
                (self._holder, called), self._since = self._waiting.popleft(), now
                called.release()


class ReadBudget:
    """One turn of long work (`Pace`). Without arguments it is not limited.

    Args:
        until: when its request is over (`monotonic`).
        least_s, most_s: how long the turn is, while others wait and while nobody does.
        threads: who else there is.
    """

    def __init__(
        self,
        until: float = math.inf,
        least_s: float = math.inf,
        most_s: float = math.inf,
        threads: ReadThreads | None = None,
    ) -> None:
        self._until = until
        self._turn_s = (least_s, most_s)
        self._threads = threads
        self._given_up = False
        self._size = FIRST_PART
        self.start()

    @property
    def left(self) -> float | None:
        """Seconds until the request is over; None without an end."""
        return None if self._until == math.inf else max(0.0, self._until - monotonic())

    def give_up(self) -> None:
        """Nobody waits any more (any thread): the work ends at its next look."""
        self._given_up = True

    def start(self) -> None:
        """The turn begins now."""
        now = monotonic()
        self._turn = now + self._turn_s[0], now + self._turn_s[1]
        self.begin(1)

    def begin(self, of: int) -> None:
        """Begin one of the slices that the turn is divided among.

        Args:
            of: how many are left, this one too.
        """
        now = monotonic()
        least, most = (max(0.0, end - now) / of for end in self._turn)
        self._least, self._most = now + least, now + most

    @property
    def spent(self) -> bool:
        """Whether the turn is over, or this slice's part of it: the work is to say where it got to."""
        now = monotonic()
        if now < self._least:
            return False
        return now >= self._most or (self._threads is not None and self._threads.crowded)

    def look(self) -> None:
        """Between parts of the work.

        Raises:
            OutOfTimeError: the request is over.
            GivenUpError: nobody waits.
        """
        if self._given_up:
            raise GivenUpError
        now = monotonic()
        if now > self._until:
            raise OutOfTimeError(
                "the request's time ran out while slices were read",
                next_step="allow more with timeout_ms, or ask for less",
            )
        if self._threads is not None:
            self._threads.give_way(now)
            rested = monotonic() - now  # which is not the turn's
            self._turn = self._turn[0] + rested, self._turn[1] + rested
            self._least, self._most = self._least + rested, self._most + rested

    def parts(self, block: Sequence[ItemT]) -> Iterator[Sequence[ItemT]]:
        """A block in parts that each take about `PART_S` to work on; looks behind each. Raises as `look`."""
        at, count = 0, len(block)
        if not count:
            self.look()
        while at < count:
            part = block if not at and count <= self._size else block[at : at + self._size]
            began = thread_time()  # what others did meanwhile is not this part's
            yield part
            took = thread_time() - began
            if len(part) == self._size or took > PART_S:
                wanted = int(len(part) * PART_S / max(took, 1e-6))
                self._size = max(1, min(wanted, 2 * self._size, LARGEST_PART))
            at += len(part)
            self.look()


class ReadThreads:
    """The threads for long work of one node.

    Args:
        long_readers: threads that later turns share.

    Attributes:
        short_at: when a short request was answered last (`monotonic`).
    """

    def __init__(self, long_readers: int = 1) -> None:
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="scan")
        self._later = ThreadPoolExecutor(long_readers, thread_name_prefix="long-scan")
        self._shapers = ThreadPoolExecutor(SHAPERS, thread_name_prefix="shapes")
        self._lock = threading.Lock()
        self._queued = 0
        self.short_at = -math.inf
        self._baton = FairLock()
        self._thread = threading.local()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._later.shutdown(wait=False, cancel_futures=True)
        self._shapers.shutdown(wait=False, cancel_futures=True)

    @property
    def crowded(self) -> bool:
        """Whether others wait for a turn."""
        return self._queued > 0

    def others(self, now: float) -> bool:
        """Whether short requests are about."""
        return now - self.short_at < OTHERS_S

    def give_way(self, now: float) -> None:
        """Between two parts of long work: let the other threads work, and rest while others are about."""
        about = self.others(now)
        self._baton.give(0.0 if about else HELD_S)
        self._baton.take()
        if about and thread_time() - getattr(self._thread, "rested_at", 0.0) >= PART_S / 2:
            time.sleep(REST_S)  # with the baton: the others rest, too
            self._thread.rested_at = thread_time()

    async def run(self, work: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Have done in a thread what is bounded by itself: rows as JSON, merging, planning. What takes more
        than a few milliseconds looks at `pace` between its parts."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, work, arguments)

    async def prepare(self, work: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Have a request's shapes made ready: in one piece, beside whatever else is read."""
        return await asyncio.get_running_loop().run_in_executor(self._shapers, work, *arguments)

    @property
    def pace(self) -> ReadBudget:
        """For the parts of what is run."""
        return ReadBudget(threads=self)

    def _run(self, work: Callable[..., ResultT], arguments: tuple[object, ...]) -> ResultT:
        try:
            now = monotonic()
            if self.others(
                now
            ):  # (else side by side: making Arrow's rows leaves the interpreter half of the time)
                self.give_way(now)
            return work(*arguments)
        finally:
            self._baton.give()

    def turn(
        self, work: Callable[[ReadBudget], ResultT], within_s: float | None, *, first: bool
    ) -> ReadTurn[ResultT]:
        """Have `work` done in a thread.

        Args:
            within_s: after so long nobody waits any more; None for no limit.
            first: of its request.
        """
        until = math.inf if within_s is None else monotonic() + within_s
        least_s, most_s = (FIRST_TURN_S, FIRST_TURN_S) if first else (TURN_S, LONGEST_TURN_S)
        effort = ReadBudget(until, least_s, most_s, self)
        with self._lock:
            self._queued += 1
        turn = ReadTurn(effort, (self._threads if first else self._later).submit(self._begun, work, effort))
        turn.done.add_done_callback(self._left)
        return turn

    def _begun(self, work: Callable[[ReadBudget], ResultT], effort: ReadBudget) -> ResultT:
        self._dequeue()
        try:
            effort.look()
            effort.start()  # the time in the queue is not the turn's
            return work(effort)
        finally:
            self._baton.give()

    def _left(self, done: Future[ResultT]) -> None:
        if done.cancelled():  # before it began
            self._dequeue()

    def _dequeue(self) -> None:
        with self._lock:
            self._queued -= 1


class ReadTurn(Generic[ResultT]):
    """One turn of a read that is under way in a thread.

    Attributes:
        done: when it is over, also long after nobody waits for it any more.
    """

    def __init__(self, effort: ReadBudget, done: Future[ResultT]) -> None:
        self.done = done
        self._effort = effort

    async def result(self, gone: Gone | None = None) -> ResultT:
        """What the work gives. It is given up when the reader goes away, its time is over, or the caller is
        cancelled.

        Raises:
            ReaderGoneError, OutOfTimeError: it is given up.
        """
        waiting = asyncio.wrap_future(self.done)
        futures: set[asyncio.Future[ResultT] | asyncio.Future[None]] = {waiting}
        watch = None if gone is None else asyncio.ensure_future(gone())
        if watch is not None:
            futures.add(watch)
        try:
            await asyncio.wait(futures, timeout=self._effort.left, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            if watch is not None and watch.done():
                raise ReaderGoneError
            raise OutOfTimeError(
                "the request's time ran out while it waited for its turn to read slices",
                next_step="try again, or allow more with timeout_ms: the node has much to read",
            )
        finally:
            if watch is not None:
                watch.cancel()
            if not waiting.done():
                self._effort.give_up()
                waiting.cancel()
