"""One repair of one index, from the first look to the last.

Theory of operation
===================
    look       a verification at snapshot T0: which documents differ? None: done
    watch      slices are told to remember what they hear of them; then the ends of the source are sampled
    look again at a snapshot T1 at or past these ends, and not before the grace is over: what differs still?
    correct    the truth at T1 of what differs still; slices spare what they heard of since T1
    end        slices forget; it is waited for until what they did is durable
    look       a verification, which finds nothing, or begins the next round, a few times

A difference is proven twice before anything is done, by exact snapshots each time. What was changed between
the two looks is left to the next round, if it is wrong still. A dry run ends with the second look, and has
told slices nothing.

A round that fails anywhere (a slice is away, Kafka, the driver dies) leaves nothing behind but a slice's
memory, which ends with the next round or by itself. The repair begins again then, from the first look.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from keytide.catalog.records import IndexRecord
from keytide.errors import CallerError, RetryableError
from keytide.model.timestamp import Timestamp
from keytide.process.sync_points import reach
from keytide.settings.settings import RepairSettings
from keytide.wire import digests
from keytide.wire.corrections import Correction, Round, pack_corrections, pack_watch
from keytide.wire.messages import Corrections, RepairEnd, RepairWatch, SliceStatus
from streaming.repair.corrections import CORRECTED, Planned, batches, count_actions, planned, wanted
from streaming.repair.slices import SliceChannel, SliceStatuses
from streaming.slices.pins import Pin
from streaming.verify.core.comparing import NOTHING, Evidence, SourceDocument, judge
from streaming.verify.core.difference import Difference, IndexedDocument
from streaming.verify.documents import DocumentComparison, VerificationContext, VerificationResult
from streaming.verify.source import SourceRanges, SourceReader
from streaming.verify.tasks import VerifyWork
from streaming.verify.verification import Verification

MESSAGE_DOCUMENTS: Final = 5_000
"""Documents in one message of corrections: a commit of a slice, some ten milliseconds."""
MESSAGE_BYTES: Final = 8 << 20
NAP_S: Final = 0.2


class NotRepairedError(CallerError):
    """The index still differs after the last round, or differs in more than a repair corrects."""

    problem_type = "not-repaired"


class LiveComparison:
    """Compares one index with its source, by the parts of verification.

    Args:
        context: of the one index.
        reader: makes the reader of the source, told how many records there are.
        began: called with each whole comparison when it begins.
    """

    def __init__(
        self,
        context: VerificationContext,
        reader: Callable[[int], SourceReader],
        began: Callable[[Verification], None] = lambda _: None,
    ) -> None:
        self._context = context
        self._reader = reader
        self._began = began

    def compare_all(self) -> VerificationResult:
        """Everything, at a new snapshot."""
        verification = Verification(self._context, self._reader)
        self._began(verification)
        return verification.run()

    def read_documents(
        self, pin: Pin, ids: set[bytes]
    ) -> tuple[Mapping[bytes, SourceDocument], Mapping[bytes, Sequence[IndexedDocument]], Evidence]:
        """What the source and the slices have of some documents, at a snapshot that is held."""
        began = time.monotonic()
        (index,) = self._context.indexes
        self._context.source.check(pin.timestamp, pin.incarnation)
        starts, ends = self._context.starts(), pin.timestamp.offsets()
        documents = SourceRanges.of(self._context.keyspace, starts, ends).documents
        work = VerifyWork(
            definitions=self._context.definitions,
            indexes=self._context.plans,
            bits=digests.bits_for(documents),
            range_bits=0,
            routes=(),
            until=ends,
        )
        reader = self._reader(documents)
        comparison = DocumentComparison(self._context, reader, work, VerificationResult(pin, {}), began)
        truths = comparison.source_documents(pin, {}, {index.id: ids})
        held = comparison.indexed_documents(pin, {}, {index.id: ids})
        evidence = comparison.evidence()
        self._context.source.check(pin.timestamp, pin.incarnation)
        return truths, {docid: some for (_, docid), some in held.items()}, evidence

    def ends(self) -> dict[int, int]:
        """Where the source ends for a reader of committed records."""
        return self._context.source.ends()

    def pin(self, at_least: Timestamp) -> Pin:
        return self._context.slices.pin(self._context.stopped, at_least)

    def release(self, pin: Pin) -> None:
        self._context.slices.release(pin)


@dataclass
class Repaired:
    """What a repair has found and done.

    Attributes:
        first, last: the first look, and the newest whole one; None before the first.
        planned: what was done, or would be, newest round last.
        rounds: how many there were.
        corrected, spared, void: documents, summed over slices, as these told (`RepairStatus`); of the copies
            of a slice the one with the most.
    """

    first: VerificationResult | None = None
    last: VerificationResult | None = None
    planned: list[Planned] = field(default_factory=list)
    rounds: int = 0
    corrected: int = 0
    spared: int = 0
    void: int = 0


@dataclass(frozen=True)
class Repair:
    """Repairs one index.

    Attributes:
        name: of this run of the job; never used before.
        tell: called with what is done now, in words.
        stopped: asked while waiting.
        now: seconds; `nap` waits so many.
    """

    index: IndexRecord
    name: str
    comparison: LiveComparison
    channel: SliceChannel
    settings: RepairSettings
    tell: Callable[[str], None]
    stopped: Callable[[], bool]
    now: Callable[[], float] = time.monotonic
    nap: Callable[[float], None] = time.sleep

    def run(self, done: Repaired, *, dry_run: bool = False) -> None:
        """Repair, or find out what there is to repair.

        Args:
            done: gets what was found and done, also when this raises.

        Raises:
            RetryableError: something was away; begin again.
            NotRepairedError: it is of no use to begin again.
        """
        self.tell("comparing the index with its source")
        found = done.first = done.last = self.comparison.compare_all()
        while True:
            self._refuse_too_many(found)
            ids = wanted(found.differences)
            if not ids:
                return
            if done.rounds == self.settings.rounds:
                void = f"; slices could not judge {done.void} corrections" if done.void else ""
                text = f"{len(ids)} documents of {self.index.name} differ still after {done.rounds} rounds"
                raise NotRepairedError(
                    text + void,
                    next_step="see the report; build the index anew if they do not change",
                )
            if dry_run:
                done.planned = self._dry(found, ids)
                return
            self._round(done, ids, found.pin.incarnation)
            self.tell("comparing the index with its source once more")
            found = done.last = self.comparison.compare_all()

    def _refuse_too_many(self, found: VerificationResult) -> None:
        index = found.indexes[self.index.id]
        if index.not_examined or index.unlisted or len(wanted(found.differences)) > self.settings.documents:
            raise NotRepairedError(
                f"more than {self.settings.documents} documents of {self.index.name} differ",
                next_step="drop the index and build it anew; or raise repair.documents",
            )

    def _dry(self, found: VerificationResult, ids: set[bytes]) -> list[Planned]:
        ends = Timestamp.of(self.comparison.ends())
        return self._look_again(ends, ids, found.pin.incarnation, time_at=self.now())[1]

    # --- a round --------------------------------------------------------------

    def _round(self, done: Repaired, ids: set[bytes], incarnation: int) -> None:
        number, seen_at = done.rounds, self.now()
        done.rounds += 1
        to = {n: Round(self.index.id, n, self.name, number, incarnation) for n in range(self.index.slices)}
        self.tell(f"round {number + 1}: {len(ids)} documents differ, slices watch them")
        self.channel.send([pack_watch(one, sorted(ids)) for one in to.values()])
        try:
            plans, told = self._between(to, ids, incarnation, seen_at)
        except BaseException:
            with suppress(RetryableError):  # (the memory of slices ends by itself, too)
                self._end(to)
            raise
        over = self._end(to)
        done.planned += plans
        for number_of_slice in to:
            mine = [one.repair for one in told.values() if one.slice == number_of_slice and one.repair]
            done.corrected += max((one.corrected for one in mine), default=0)
            done.spared += max((one.spared for one in mine), default=0)
            done.void += max((one.void for one in mine), default=0)
        self.tell(f"round {number + 1}: waiting until the corrections are durable")
        self._wait("durable", lambda status: self._durable(status, number, over[status.slice]))

    def _between(
        self, to: Mapping[int, Round], ids: set[bytes], incarnation: int, seen_at: float
    ) -> tuple[list[Planned], SliceStatuses]:
        """What is done while slices watch: what was planned, and what they say of it."""
        number = next(iter(to.values())).number
        self._wait("watching", lambda status: _at(status, self.name, number) and status_watches(status))
        reach("repair-watched")
        ends = Timestamp.of(self.comparison.ends())
        at, plans = self._look_again(ends, ids, incarnation, time_at=seen_at + self.settings.grace_s)
        self.tell(f"round {number + 1}: correcting {len({one.correction.id for one in plans})} documents")
        sent = self._correct(to, at, plans)
        reach("repair-corrected")
        told = self._wait(
            "correcting",
            lambda status: (
                _at(status, self.name, number)
                and status.repair is not None
                and status.repair.sequences >= sent[status.slice]
            ),
        )
        return plans, told

    def _end(self, to: Mapping[int, Round]) -> dict[int, int]:
        """Have slices forget; where in their queues that is said."""
        return self.channel.send(
            [RepairEnd(one.index, one.slice, one.job, one.number, one.incarnation) for one in to.values()]
        )

    def _look_again(
        self, at_least: Timestamp, ids: set[bytes], incarnation: int, time_at: float
    ) -> tuple[Timestamp, list[Planned]]:
        """What still differs at a snapshot at or past `at_least` and `time_at`, and what is to be done."""
        while self.now() < time_at:
            if self.stopped():
                raise RetryableError("the driver was asked to end")
            self.nap(min(NAP_S, max(0.0, time_at - self.now())))
        self.tell(f"looking again at {len(ids)} documents")
        pin = self.comparison.pin(at_least)
        try:
            if pin.incarnation != incarnation:
                raise RetryableError("the source was rolled back meanwhile")
            truths, held, evidence = self.comparison.read_documents(pin, ids)
        finally:
            self.comparison.release(pin)
        plans: list[Planned] = []
        for docid in sorted(ids):
            truth, there = truths.get(docid, NOTHING), held.get(docid, ())
            verdict = judge(self.index.id, docid, there, truth, evidence)
            if isinstance(verdict, Difference) and verdict.kind in CORRECTED:
                plans += planned(docid, self.index.id, self.index.slices, there, truth)
        return pin.timestamp, plans

    def _correct(self, to: Mapping[int, Round], at: Timestamp, plans: list[Planned]) -> dict[int, int]:
        """Send corrections; slice -> how many messages."""
        by_slice: dict[int, list[Correction]] = {number: [] for number in to}
        for one in plans:
            by_slice[one.slice].append(one.correction)
        messages: list[RepairWatch | Corrections | RepairEnd] = []
        sent: dict[int, int] = {}
        for number, corrections in by_slice.items():
            parts = batches(corrections, MESSAGE_DOCUMENTS, MESSAGE_BYTES)
            sent[number] = len(parts)
            messages += [pack_corrections(to[number], n, at, part) for n, part in enumerate(parts)]
        if messages:
            self.channel.send(messages)
        return sent

    def _durable(self, status: SliceStatus, number: int, over: int) -> bool:
        """Whether what a slice did in a round survives a crash: it says so, or (after one) it would read on
        behind the round."""
        says = _at(status, self.name, number) and status.repair is not None and status.repair.durable
        return says or status.queue_position > over

    def _wait(self, what: str, done: Callable[[SliceStatus], bool]) -> SliceStatuses:
        return self.channel.wait(what, done, self.settings.wait_s, self.stopped, self.tell)


def status_watches(status: SliceStatus) -> bool:
    """Whether a slice remembers what it hears."""
    return status.repair is not None and status.repair.watching


def _at(status: SliceStatus, name: str, number: int) -> bool:
    """Whether a slice speaks of this round."""
    return status.repair is not None and (status.repair.job, status.repair.round) == (name, number)


def summary(done: Repaired, *, dry_run: bool) -> str:
    """What a repair came to, in a line."""
    documents = len({one.correction.id for one in done.planned})
    if dry_run:
        actions = ", ".join(f"{count} {action}" for action, count in count_actions(done.planned).items())
        return f"would correct {documents} documents ({actions or 'nothing to do'}); nothing was written"
    if not done.rounds:
        return "nothing was wrong"
    text = f"{documents} documents were corrected in {done.rounds} rounds"
    return text + (f", {done.spared} changed meanwhile and were left alone" if done.spared else "")
