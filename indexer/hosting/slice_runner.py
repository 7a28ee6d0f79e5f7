"""One slice of this node: its core, its store, its snapshots; carries out what the core asks for.

Theory of operation
===================
`feed` hands an event to the core and carries out the instructions in order. A commit is done at once and its
result fed back. What cannot be done now (the disk is full, the fold is behind) stays at the head of `_todo`,
with everything behind it, and is tried again later: nothing is lost, for the core only listens meanwhile, and
what it may hold is bounded. A core that stopped is started again now and then from the state of its store,
which reads the queue again from there: a gap may have been filled by then.

A rollback (`rolled_back`) drops what waits to be tried again, steps the store back and the snapshots with it,
and begins to read anew; where nothing at all holds of what the store has (the source topic was made anew), an
empty store takes its place. A store that is found damaged, by a commit, a fold, a check or a scan, makes the
slice LOST: it serves nothing from that moment, and its owner (`indexer.hosting.hosting`) puts it away.

All of this happens in the ingest thread; only the ring is shared with the endpoint.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from indexer.hosting.core import slice_status as status
from indexer.hosting.metrics import Evictions, NodeMetrics
from indexer.hosting.queue_reading import QueueReading
from indexer.hosting.snapshots import SnapshotRing
from indexer.hosting.spool import Spool
from indexer.hosting.step_back import BeginAnew, step_back
from indexer.slice.core import SliceCore
from indexer.slice.events import (
    Acknowledge,
    Apply,
    Correct,
    DataLost,
    Done,
    DropChunks,
    Event,
    Failed,
    Instruction,
    KeepChunk,
    LoadBatch,
    Lose,
    PauseReading,
    ReadBackfill,
    ReadMutations,
    Resume,
    RetrySucceeded,
    RolledBack,
    Stamped,
    StepBack,
    SteppedBack,
    Stop,
    SwitchOver,
)
from indexer.slice.freshness import WaitingTimes
from indexer.slice.limits import SliceLimits
from indexer.slice.write_load import WriteLoad
from indexer.store.interface import UNNUMBERED, SliceStore, StoreDamagedError
from indexer.unique.watch import UniqueWatch
from keytide.catalog.history import History
from keytide.errors import RetryableError
from keytide.process.sync_points import reach
from keytide.wire.messages import SliceStatus

log = logging.getLogger(__name__)

RETRY_MS: Final = 1_000
"""Between tries of a commit that fails."""
RESTART_MS: Final = 30_000
"""Before a core that stopped is started again."""
DISK_BYTES_MS: Final = 5_000
"""Between looks at the size on disk."""

SliceKey = tuple[str, int]
"""(index id, slice number)."""


class SliceRunner:
    """One slice.

    Args:
        keyspace: of its index.
        store: opened; closed with the runner.
        spool: where chunks wait; closed with the runner.
        reading: the node's consumer.
        acknowledge: called with (keyspace, incarnation, number, key) when a number's commit can be read.
        term: newest term known.
        history: of the keyspace; None when it has none but what the store shows.
        begin_anew: how an empty store takes the place of the slice's; None: the slice is LOST then.
        unique: looks for keys that several documents have, in a slice of a UNIQUE index.
        version: of the index's record.
        load: counts what is written.

    Attributes:
        ring: the snapshots, for the endpoint.
        damaged: its store is not to be trusted any more.
    """

    def __init__(
        self,
        key: SliceKey,
        keyspace: str,
        store: SliceStore,
        spool: Spool,
        limits: SliceLimits,
        snapshots_kept: int,
        reading: QueueReading,
        acknowledge: Callable[[str, int, int, SliceKey], None],
        metrics: NodeMetrics,
        term: int,
        history: History | None = None,
        begin_anew: BeginAnew | None = None,
        unique: UniqueWatch | None = None,
        version: int = 0,
        load: WriteLoad | None = None,
    ) -> None:
        self.key = key
        self.keyspace = keyspace
        self.store = store
        self.ring = SnapshotRing(snapshots_kept)
        self._spool = spool
        self._reading = reading
        self._acknowledge = acknowledge
        self._metrics = metrics
        self._todo: deque[Instruction] = deque()
        self._retry_at = 0
        self._restart_at = 0
        self._corrected = 0
        self._fold_error = ""
        self._disk = (0, 0)
        self._evictions = Evictions(metrics)
        self._times = WaitingTimes()
        self._begin_anew = begin_anew
        self.unique = unique
        self.load = load or WriteLoad(key[1])
        self.damaged = False
        self.core = SliceCore(*key, store.applied, limits, term, history, version)

    def feed(self, event: Event, now: int) -> None:
        """Hand one event to the core and do what it asks for."""
        if self.unique is not None and isinstance(event, Stamped):
            self.unique.stamped(event.number, event.message)
        self._carry_out(self.core.handle(event), now)

    def rolled_back(self, history: History, now: int) -> None:
        """The dictionary shows this history of the keyspace; nothing happens when it is known already."""
        if history.incarnation > self.core.history.incarnation:
            self.feed(RolledBack(history), now)

    def lose(self, reason: str, now: int, *, damaged: bool = False) -> None:
        """The slice's data cannot be had, or not be trusted, any more."""
        self.damaged = self.damaged or damaged
        self._carry_out(self.core.handle(DataLost(reason)), now)

    def look_after(self, now: int, *, fold: bool = True) -> None:
        """What is due: another try or start, a fold (if one may begin), leases that ran out; damage met."""
        damage = self.ring.damage
        if damage and not self.damaged:
            self.lose(damage, now, damaged=True)
        if self.core.state == "LOST":
            return
        self._fold(now, fold)
        self._evictions.look(self.core, now)
        if self._todo and now >= self._retry_at:
            self._try_again(now)
        if self._restart_at and now >= self._restart_at:
            self._restart(now)
        self.ring.expire(now)
        self.load.look(now)
        if self.unique is not None:
            self.unique.show()

    def sweep(self, now: int) -> bool:
        """Look for keys that several documents have, a step further; whether there was anything to do."""
        unique = self.unique
        if unique is None or self.core.state == "LOST":
            return False
        try:
            return unique.look_after(now, self.store.snapshot() if unique.due(now) else None)
        except StoreDamagedError as error:
            self.lose(error.message, now, damaged=True)
        except RetryableError:
            pass  # (no snapshot can be had now; it stays due)
        return False

    def set_limits(self, limits: SliceLimits) -> None:
        """Change the slice's share of the node's memory."""
        self.core.set_limits(limits)

    def published(self, number: int, now: int) -> None:
        """The leader announced a newest common number: what lies below it can be scanned now."""
        self.ring.publish(number, now)
        for record_time in self._times.published(number):
            self._metrics.freshness.observe(max(0, now - record_time) / 1000)

    def close(self) -> None:
        """Let go of everything; what is on disk stays."""
        self._leave()
        self._spool.close()
        self.store.close()

    def destroy(self) -> None:
        """The same, and delete what is on disk."""
        self._leave()
        self._spool.close()
        self.store.destroy()

    def status(self, now: int) -> SliceStatus:
        """For the node's heartbeat."""
        if now - self._disk[0] >= DISK_BYTES_MS:
            self._disk = (now, self.store.disk_bytes())
        return status.running(self.core, self.store, self._fold_error, self._disk[1], self.unique)

    # --- instructions ---------------------------------------------------------------------------------

    def _carry_out(self, instructions: list[Instruction], now: int) -> None:
        for instruction in instructions:
            if isinstance(instruction, Lose):
                self._let_go(instruction.reason)
            elif self.core.state == "LOST":
                return
            elif isinstance(instruction, PauseReading):
                self._reading.pause(self.key)
            elif isinstance(instruction, Resume):
                self._reading.resume(self.key)
            elif isinstance(instruction, Stop):
                self._stop(instruction.reason, now)
            elif isinstance(instruction, StepBack):
                self._todo.clear()  # void
                self._restart_at = 0
                self._reading.leave(self.key)
                self._try(instruction, now)
            elif self._todo:
                self._todo.append(instruction)
            else:
                self._try(instruction, now)

    def _try(self, instruction: Instruction, now: int) -> bool:
        """Do one instruction; False when it failed and is kept for another try."""
        try:
            outcome = self._do(instruction, now)
        except StoreDamagedError as error:
            self.lose(error.message, now, damaged=True)
            return False
        except RetryableError as error:
            log.warning("slice %s/%d waits: %s", *self.key, error)
            self._todo.appendleft(instruction)
            self._retry_at = now + RETRY_MS
            self._carry_out(self.core.handle(Failed(error.message)), now)
            return False
        if outcome is not None:
            self._carry_out(self.core.handle(outcome), now)
        return True

    def _try_again(self, now: int) -> None:
        todo, self._todo = self._todo, deque()
        while todo:
            if not self._try(todo.popleft(), now) or self._todo:
                if self.core.state != "LOST":
                    self._todo.extend(todo)
                return
        self._carry_out(self.core.handle(RetrySucceeded()), now)

    def _do(self, instruction: Instruction, now: int) -> Event | None:
        """Carry it out; what came of it when the core waits for that."""
        match instruction:
            case Apply(applied=applied):
                self._apply(instruction, now)
                return Done(applied)
            case Correct(corrections=corrections, spared=spared, applied=applied):
                # (When it cannot be shown now it is made again, and changes nothing.)
                self._corrected += self.store.correct(corrections, spared, applied)
                self._show_anew(now)
                corrected, self._corrected = self._corrected, 0
                log.info("slice %s/%d corrected %d documents", *self.key, corrected)
                return Done(applied, corrected)
            case Acknowledge(number=number, incarnation=incarnation):
                self._acknowledge(self.keyspace, incarnation, number, self.key)
            case KeepChunk(key=key, chunk=chunk):
                self._spool.keep(key, chunk)
            case LoadBatch(puts=puts, removals=removals, applied=applied):
                self.ring.show_built(None)  # (who waits for it sees that it goes on)
                done = self.store.load(self._spool.puts(puts), self._spool.removals(removals), applied)
                self.ring.show_built(self.store.snapshot())
                words = "slice %s/%d loaded micro-batch %d, %d of %d entries appended"
                log.info(words, *self.key, applied.batch, done.appended, done.put)
                return Done(applied)
            case DropChunks(keys=keys):
                self._spool.forget(keys)
            case SwitchOver(applied=applied):
                self.ring.show_built(None)
                self.store.load([], [], applied)
                reach("switch-over")
                self._show_anew(now)
                log.info("slice %s/%d switches to its mutation queue", *self.key)
                return Done(applied)
            case ReadMutations(position=position):
                self._reading.read_mutations(self.key, position)
            case ReadBackfill(build=build, position=position):
                self._reading.read_backfill(self.key, build, position)
            case StepBack(history=history):
                self._times.clear()
                self._corrected = 0
                self._forget_unique()
                self.store, outcome = step_back(self.store, self.ring, history, self._begin_anew)
                if isinstance(outcome, SteppedBack):
                    self._show_anew(now)
                return outcome
            case PauseReading() | Resume() | Stop() | Lose():
                pass  # done out of turn, by `_carry_out`
        return None

    def _apply(self, instruction: Apply, now: int) -> None:
        began = time.perf_counter()
        applied = instruction.applied
        done = self.store.apply(instruction.segments, applied)
        self.load.committed(instruction.segments, done.put + done.removed)
        snapshot = self.store.snapshot()
        self.ring.add(snapshot, applied.number, now)
        if self.unique is not None:
            self.unique.committed(instruction.segments, snapshot, applied)
        self._metrics.commit.observe(time.perf_counter() - began)
        if applied.number != UNNUMBERED:
            self._times.committed(applied.number, instruction.segments)

    # --- keeping up -----------------------------------------------------------------------------------

    def start(self, now: int) -> None:
        """Let the core begin to read on the store as it is. A state that is void is shown to nobody."""
        applied, history = self.core.applied, self.core.history
        try:
            if applied.building:
                self.ring.show_built(self.store.snapshot())
            elif history.holds(applied.timestamp, applied.incarnation):
                self._show_anew(now)
        except StoreDamagedError as error:
            self.lose(error.message, now, damaged=True)
            return
        except RetryableError as error:
            self._carry_out(self.core.cannot_start(error.message), now)
            return
        self._carry_out(self.core.start(), now)

    def _show_anew(self, now: int) -> None:
        """Show a state that no commit of the mutation queue brought: it has no number, and what several
        documents have in it must be looked for."""
        self.ring.add(self.store.snapshot(), UNNUMBERED, now)
        if self.unique is not None:
            self.unique.begin(self.store.snapshot())

    def _forget_unique(self) -> None:
        if self.unique is not None:
            self.unique.forget()

    def _let_go(self, reason: str) -> None:
        """The slice is LOST: whatever was kept of it is served to nobody any more."""
        log.error("slice %s/%d is lost: %s", *self.key, reason)
        self._todo.clear()
        self._restart_at = 0
        self._leave()

    def _leave(self) -> None:
        self._reading.leave(self.key)
        self._forget_unique()
        self.ring.close()

    def _stop(self, reason: str, now: int) -> None:
        log.error("slice %s/%d stopped: %s", *self.key, reason)
        self._reading.leave(self.key)
        self._todo.clear()
        self._restart_at = now + RESTART_MS

    def _restart(self, now: int) -> None:
        """A new core on the store as it is. Its reason stays in sight until the slice has a snapshot."""
        self._restart_at = 0
        self._todo.clear()
        log.info("slice %s/%d starts again", *self.key)
        reason = self.core.reason
        self.core = self.core.anew(self.store.applied)
        self.core.reason = reason
        self._spool.forget_all()
        self.start(now)

    def _fold(self, now: int, may_begin: bool) -> None:
        try:
            if self.store.folding:
                if self.store.finish_fold() is not None:
                    self._fold_error = ""
                    self._retry_at = now  # of what waited for it, if anything
            elif self.store.fold_due(now) and may_begin:  # (asked in any case: a delta's age counts from it)
                self.store.start_fold()
        except StoreDamagedError as error:
            self.lose(error.message, now, damaged=True)
        except RetryableError as error:
            log.warning("fold of slice %s/%d: %s", *self.key, error)
            self._fold_error = error.message
