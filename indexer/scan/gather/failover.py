"""One round of requests to slices that have several copies: whoever does not answer, or does not hold the
snapshot, has another copy asked in its place, at the same number (R36).

Theory of operation
===================
Every slice is asked at one copy at first. It is asked at its next one

* when that copy answers that it does not hold the snapshot, or its node refuses or cannot be reached; one
  that does not hold it yet is the last to be asked for a while (`PeerHealth.lacks`);
* when the node has not answered for longer than most of its answers take (`PeerHealth.hedge_s`): then both
  are waited for, and the first answer counts. Where too many were asked twice lately it is waited for longer:
  half of the time that is left, `LONG_HEDGE_S` at most if the request is short. When nothing at all was heard
  of the node by then the other copy is asked all the same, and has time to answer.

The last to be asked, when the others have failed or stand still, are copies that lag behind what is published
(R37), and copies that leave (R42).

A slice is answered by one copy only; whoever asks goes on with that one (`Target.elsewhere`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec

from indexer.scan.peer.health import LEAST_HEDGE_S, LONG_HEDGE_S, PeerHealth
from indexer.scan.peer.messages import (
    HistoryAheadError,
    OutOfTimeError,
    ReadReply,
    ReadRequest,
    SliceReader,
    SliceReply,
)
from indexer.scan.plan.errors import SnapshotMissingError
from indexer.scan.plan.selection import sifts
from keytide.errors import RetryableError
from keytide.http.node_protocol import TRY_AGAIN, NodeUnavailableError

OWN_FAULT = ("too-many-leases",)
"""Problem types of refusals that another copy would give as well, or should not be asked to make good for."""

NodeAnswer = tuple[str, bool, SliceReply]
"""(node that has answered, whether it keeps the snapshot, the slice's reply)."""
Failure = RetryableError | SnapshotMissingError


@dataclass(slots=True)
class _Asked:
    """A request under way.

    Attributes:
        hedge_at: when another copy is asked too, if there is one.
        patient_since: when that was due the last time, 0 for never.
    """

    node: str
    request: ReadRequest
    since: float
    hedge_at: float
    patient_since: float = 0.0


class ReadTerms(Protocol):
    """What a round must know of its `Target`."""

    @property
    def left_s(self) -> float:
        """How long a node may be waited for."""
        ...

    @property
    def within_ms(self) -> int:
        """How long a node that is asked now may take."""
        ...

    def check(self, node: str, reply: SliceReply) -> None:
        """Raise `SnapshotMissingError` or `NodeUnavailableError` unless it is from the target's snapshot."""


class CopyRequests:
    """One round.

    Args:
        target: what is read.
        requests: node -> what to ask it, as `ask` has them.
        further: slice -> its further copies, if it may be asked elsewhere.
        leaving: slice -> those that count no longer, if there are any.
    """

    def __init__(
        self,
        target: ReadTerms,
        nodes: SliceReader,
        requests: Mapping[str, ReadRequest],
        further: Mapping[int, Sequence[str]],
        leaving: Mapping[int, Sequence[str]] | None = None,
    ) -> None:
        self._target = target
        self._nodes = nodes
        self._requests = requests
        self._now = asyncio.get_running_loop().time
        self._found: list[NodeAnswer] = []
        self._after: dict[int, bytes] = {}
        self._untried: dict[int, list[str]] = {}
        self._last: dict[int, list[str]] = {}
        self._failures: dict[int, Failure] = {}
        self._running: dict[asyncio.Task[ReadReply], _Asked] = {}
        for request in requests.values():
            for number, after in zip(request.span.slices, request.span.after, strict=True):
                self._after[number] = after
                untried = self._untried_of(request, number, further.get(number, ()))
                leave = self._untried_of(request, number, (leaving or {}).get(number, ()))
                counted = nodes.health.waited_for(untried, (request.span.index, number))
                self._untried[number] = counted
                self._last[number] = [*(one for one in untried if one not in counted), *leave]

    async def run(self) -> list[NodeAnswer]:
        """The answer of every slice. Raises as `ask`: what the copy that was asked first has said, and of a
        snapshot that is missing there, what hindered the others (`SnapshotMissingError.elsewhere`)."""
        try:
            for node, request in self._requests.items():
                if node != self._nodes.here:
                    self._ask(node, request)
            if self._nodes.here in self._requests:
                if self._running:
                    await asyncio.sleep(0)  # let the requests go out first
                    self._take_ended()
                await self._ask_here(self._requests[self._nodes.here])
            while self._after:
                now = self._now()
                hedge_at = min((one.hedge_at for one in self._hedgeable()), default=None)
                within = None if hedge_at is None else max(0.0, hedge_at - now)
                await asyncio.wait(self._running, timeout=within, return_when=asyncio.FIRST_COMPLETED)
                if not self._take_ended():
                    self._hedge()
            return self._found
        finally:
            for task, one in self._running.items():
                if any(number not in self._after for number in one.request.span.slices):
                    self._nodes.health.silent(one.node, self._now())  # another one was faster by far
                task.cancel()

    def _under_way(self) -> set[int]:
        """The slices that some node is being asked for."""
        return {number for one in self._running.values() for number in one.request.span.slices}

    def _untried_of(self, request: ReadRequest, number: int, further: Sequence[str]) -> list[str]:
        """The further copies of a slice in the order in which to ask them. (What a copy has given is examined
        there.)"""
        if request.shape.examine:
            return []
        return self._nodes.health.order(further, self._now(), (request.span.index, number))

    # --- asking ---------------------------------------------------------------------------------------------

    def _ask(self, node: str, request: ReadRequest) -> None:
        health, now = self._nodes.health, self._now()
        health.asked(node)
        if node == self._nodes.here:
            task = asyncio.ensure_future(self._nodes.read_here(request))
        else:
            task = asyncio.ensure_future(self._nodes.read(node, request, self._target.left_s))
        task.add_done_callback(partial(_ended, health, node))
        hedge_s = health.hedge_s(node, short=_is_short(request))
        self._running[task] = _Asked(node, request, now, now + hedge_s)

    async def _ask_here(self, request: ReadRequest) -> None:
        try:
            reply = await self._nodes.read_here(request)
        except RetryableError as error:
            self._failed(self._nodes.here, request.span.slices, error)
        else:
            self._take(self._nodes.here, request, reply)

    def _ask_elsewhere(self, slices: Iterable[int], like: ReadRequest) -> None:
        """Ask the next copy of each of these slices, all that are on one node at once."""
        grouped: dict[str, list[int]] = {}
        for number in slices:
            copies = self._untried[number] or self._last[number]
            grouped.setdefault(copies.pop(0), []).append(number)
        for node, numbers in grouped.items():
            span = msgspec.structs.replace(
                like.span, slices=numbers, after=[self._after[number] for number in numbers]
            )
            paging = msgspec.structs.replace(like.paging, within_ms=self._target.within_ms)
            self._ask(node, msgspec.structs.replace(like, span=span, paging=paging))

    def _hedgeable(self) -> list[_Asked]:
        """Requests with a slice that has another copy to ask."""
        return [one for one in self._running.values() if self._open(one)]

    def _open(self, one: _Asked) -> list[int]:
        """The slices of a request that have no answer yet, and have another copy to ask."""
        return [
            number
            for number in one.request.span.slices
            if number in self._after and (self._untried[number] or self._last[number])
        ]

    def _hedge(self) -> None:
        now = self._now()
        for one in self._hedgeable():
            if one.hedge_at > now:
                continue
            left = self._open(one)
            if not one.patient_since or self._nodes.health.heard_since(one.node, one.patient_since):
                left = [number for number in left if self._untried[number]]
                if left and not self._nodes.health.may_hedge():
                    left = []
            self._ask_elsewhere(left, one.request)
            half = max(LEAST_HEDGE_S, self._target.left_s / 2)
            one.patient_since = now
            one.hedge_at = now + (min(LONG_HEDGE_S, half) if _is_short(one.request) else half)

    # --- answers --------------------------------------------------------------------------------------------

    def _take_ended(self) -> bool:
        """Whether requests have ended: each is heard, in the order in which they were asked. (A set of them,
        as `asyncio.wait` gives, has the order of their addresses: then those would say which copy is asked
        next, and of which failure the reader is told.)"""
        ended = [task for task in self._running if task.done()]
        for task in ended:
            self._done(task, self._running.pop(task))
        return bool(ended)

    def _done(self, task: asyncio.Task[ReadReply], one: _Asked) -> None:
        try:
            reply = task.result()
        except RetryableError as error:
            if isinstance(error, NodeUnavailableError):
                self._nodes.health.silent(one.node, self._now())
            else:
                self._nodes.health.heard(one.node, self._now())
            self._failed(one.node, one.request.span.slices, error)
            return
        self._nodes.health.heard(one.node, self._now())
        if _is_short(one.request):
            self._nodes.health.answered(one.node, self._now() - one.since)
        self._take(one.node, one.request, reply)

    def _take(self, node: str, request: ReadRequest, reply: ReadReply) -> None:
        told = {one.slice for one in reply.slices}
        missing = [number for number in request.span.slices if number in self._after and number not in told]
        for number in missing:
            silence = f"node {node} said nothing of slice {number}, for which it was asked"
            self._note(number, NodeUnavailableError(silence, node=node, next_step=TRY_AGAIN))
        for one in reply.slices:
            if one.slice not in self._after:
                continue  # another copy was faster
            try:
                self._target.check(node, one)
            except (SnapshotMissingError, RetryableError) as error:
                if isinstance(error, SnapshotMissingError) and error.newest < request.consistency.number:
                    wanted = request.consistency.number
                    self._nodes.health.lacks(node, (request.span.index, one.slice), wanted, self._now())
                self._note(one.slice, error)
                missing.append(one.slice)
                continue
            self._nodes.health.holds(node, (request.span.index, one.slice), one.newest)
            del self._after[one.slice]
            self._found.append((node, reply.leased, one))
        self._go_on(missing)

    def _failed(self, node: str, slices: Iterable[int], error: RetryableError) -> None:
        """
        Raises:
            RetryableError: it is not the node's fault, and nobody else is being asked.
        """
        left = [number for number in slices if number in self._after]
        for number in left:
            self._note(number, error)
        if isinstance(error, OutOfTimeError | HistoryAheadError) or error.problem_type in OWN_FAULT:
            if not self._under_way().issuperset(left):
                raise error
            return
        self._go_on(left)

    def _note(self, number: int, error: Failure) -> None:
        first = self._failures.setdefault(number, error)
        if first is not error and isinstance(first, SnapshotMissingError):
            first.elsewhere.append(error)

    def _go_on(self, slices: list[int]) -> None:
        """Ask further copies of slices that one has failed for.

        Raises:
            Failure: there is none, and nobody else is being asked.
        """
        under_way = self._under_way()
        further = []
        for number in slices:
            if self._untried[number] or (self._last[number] and number not in under_way):
                further.append(number)
            elif number not in under_way:
                raise self._failures[number]
        if further:
            self._ask_elsewhere(further, next(iter(self._requests.values())))


def _is_short(request: ReadRequest) -> bool:
    """Whether it takes about as long as others like it."""
    shape = request.shape
    if not request.paging.limit or shape.task or shape.examine:
        return False
    return not sifts(shape.filter or shape.distinct, shape.keys, (high for _, high in request.span.spans))


def _ended(health: PeerHealth, node: str, task: asyncio.Task[ReadReply]) -> None:
    """It is over; nobody may be there any more to hear how."""
    health.ended(node)
    if not task.cancelled():
        task.exception()
