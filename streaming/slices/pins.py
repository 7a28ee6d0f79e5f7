"""Holding a snapshot of whole indexes on the nodes that have their slices, to read them from outside
(`keytide.wire.digests`): for verification, and for a new layout that begins with the slices of the old one.

Theory of operation
===================
`pin` chooses the newest snapshot number that every slice of all indexes has, and holds it on each under one
id, until `release`; a thread renews the hold. Numbers are shared by all indexes of a keyspace, so one pin is
one cut through all of them. It works for indexes that are not READY too.

Of each slice one copy is read: the first that holds the snapshot. When it does not any more (its node has
restarted, the keyspace was rolled back), what was begun is worth nothing: `PinLostError`, and the job begins
again with a newer snapshot, of another copy if need be.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from keytide.catalog.catalog import Catalog
from keytide.catalog.records import IndexRecord
from keytide.errors import UNDECODABLE, RetryableError
from keytide.http.blocking_nodes import BlockingNodeClient
from keytide.http.node_protocol import NoAnswerError, NodeUnavailableError, RefusedError
from keytide.model.timestamp import Timestamp
from keytide.process.worker import Worker, logged
from keytide.wire import digests
from keytide.wire.digests import VERIFY_PATH, Answer, Ask, PinAnswer, PinAsk, SlicePin

log = logging.getLogger(__name__)

LEASE_MS: Final = 120_000
RENEW_S: Final = 20.0
PIN_LIMIT_S: Final = 60.0
"""For a number that all slices hold at once."""
PIN_PAUSE_S: Final = 0.05

AnswerT = TypeVar("AnswerT", bound=Answer)
SliceKey = tuple[str, int]
"""(index id, slice number)."""


class PinLostError(RetryableError):
    """The snapshot is not held any more."""

    problem_type = "snapshot-not-held"


@dataclass(frozen=True)
class Pin:
    """A snapshot that is held on slices.

    Attributes:
        nodes: (index id, slice) -> the node that is asked.
        entries: index id -> how many it has there.
        foreign: documents that slices have met in two source partitions.
        others: (index id, slice) -> further nodes whose copies hold it.
    """

    number: int
    incarnation: int
    timestamp: Timestamp
    hold: str
    nodes: dict[SliceKey, str]
    entries: dict[str, int] = field(default_factory=dict)
    foreign: int = 0
    others: dict[SliceKey, list[str]] = field(default_factory=dict)

    def on(self, place: SliceKey, node: str) -> Pin:
        """The same of one copy of one slice."""
        return replace(self, nodes={place: node}, others={})


class PinnedSlices:
    """The slices of some indexes of one keyspace, and what of them is held.

    Args:
        catalog: gives the dictionary as it is now (from any thread).
        indexes: index ids.
        nodes: asks them; closed with this.
        lease_ms: a snapshot is held for so long when it is not renewed.
    """

    def __init__(
        self,
        catalog: Callable[[], Catalog],
        indexes: Sequence[str],
        nodes: BlockingNodeClient,
        lease_ms: int = LEASE_MS,
    ) -> None:
        self._catalog = catalog
        self._indexes = list(indexes)
        self._nodes = nodes
        self._lease_ms = lease_ms
        self._renewals: dict[str, Worker] = {}
        self._given_back: set[str] = set()
        self._silent: set[str] = set()
        """Nodes that did not answer when they were last asked for a snapshot."""

    def close(self) -> None:
        for renewing in self._renewals.values():
            renewing.stopping.set()
        self._nodes.close()

    def pin(self, stopped: Callable[[], bool] = lambda: False, at_least: Timestamp | None = None) -> Pin:
        """Hold the newest snapshot that every slice has.

        Args:
            stopped: asked while waiting.
            at_least: the snapshot must cover this.

        Raises:
            RetryableError: not within the limit: slices are missing, or do not keep up.
        """
        deadline = time.monotonic() + PIN_LIMIT_S
        why = "no slice has a snapshot"
        while not stopped():
            try:
                found = self.try_pin(at_least)
                self.keep(found)
                return found
            except RetryableError as error:
                why = error.message
            if time.monotonic() > deadline:
                break
            time.sleep(PIN_PAUSE_S)
        raise RetryableError(
            f"no snapshot could be held on every slice within {PIN_LIMIT_S:.0f} s: {why}",
            next_step="see `keytide topology`: every slice must be LIVE",
        )

    def try_pin(self, at_least: Timestamp | None = None) -> Pin:
        """The same without waiting; held for as long as one renewal lasts (`keep`).

        Raises:
            RetryableError: now there is none.
        """
        newest, _, why = self._ask_pins(-1, -1, "", 0)
        if why:
            raise RetryableError(why)
        number = min(one.number for _, one in newest.values())
        sample = next((one for _, one in newest.values() if one.number == number), None)
        if number < 0 or sample is None:
            raise RetryableError("a slice has no snapshot yet")
        if at_least is not None and not sample.timestamp.covers(at_least):
            behind = sample.timestamp.documents_to(at_least)
            raise RetryableError(f"snapshot {number} is {behind:,} documents behind what is wanted")
        hold = f"verify-{uuid.uuid4().hex}"
        held, others, why = self._ask_pins(number, sample.incarnation, hold, self._lease_ms)
        timestamps = [one.timestamp for _, one in held.values()]
        if any(one.offsets() != sample.timestamp.offsets() for one in timestamps):
            why = f"slices say different timestamps of snapshot {number}"
        entries: dict[str, int] = {}
        for (index, _), (_, one) in held.items():
            entries[index] = entries.get(index, 0) + one.entries
        nodes = {place: node for place, (node, _) in held.items()}
        foreign = sum(one.foreign for _, one in held.values())
        pin = Pin(number, sample.incarnation, sample.timestamp, hold, nodes, entries, foreign, others)
        if why:  # (it is tried again at once: what other slices hold would pile up until it runs out)
            self._lease(pin, 0)
            raise RetryableError(why)
        return pin

    def _ask_pins(
        self, number: int, incarnation: int, hold: str, lease_ms: int
    ) -> tuple[dict[SliceKey, tuple[str, SlicePin]], dict[SliceKey, list[str]], str]:
        """The answers of slices, further nodes that hold the same of them, and why an answer is missing, ""
        when none is. With `number` -1 the newest snapshot of all copies of a slice; else of the first copy
        that holds it. Nodes that did not answer the last time are asked last, for what is missing still."""
        found: dict[SliceKey, tuple[str, SlicePin]] = {}
        others: dict[SliceKey, list[str]] = {}
        for index in self.records():
            by_node: dict[str, list[int]] = {}
            for slice_number, nodes in enumerate(index.placement):
                for node in nodes:
                    by_node.setdefault(node, []).append(slice_number)
            reasons = ""
            for node in sorted(by_node, key=lambda one: (one in self._silent, one)):
                slices = by_node[node]
                if node in self._silent:
                    slices = [one for one in slices if (index.id, one) not in found]
                if not slices:
                    continue
                ask = PinAsk(index.id, slices, number, incarnation, hold, lease_ms)
                try:
                    answer = self.call(node, ask, PinAnswer)
                except RetryableError as error:
                    reasons = error.message
                    if isinstance(error, NodeUnavailableError):
                        self._silent.add(node)
                    continue
                self._silent.discard(node)
                for one in answer.slices:
                    place = index.id, one.slice
                    if not one.held:
                        reasons = one.reason or reasons
                    elif place not in found or found[place][1].number < one.number:
                        found[place] = node, one
                    elif number >= 0:
                        others.setdefault(place, []).append(node)
            missing = [n for n in range(index.slices) if (index.id, n) not in found]
            if missing:
                held = f"snapshot {number}" if number >= 0 else "a snapshot"
                why = f"slices {missing} of {index.name} do not hold {held}"
                return found, others, why + (f" ({reasons})" if reasons else "")
        return found, others, ""

    def keep(self, pin: Pin) -> None:
        """Renew a hold until it is given back."""

        def renew() -> None:
            while not renewing.stopping.wait(RENEW_S):
                self._lease(pin, self._lease_ms)

        renewing = self._renewals[pin.hold] = Worker("renew", logged, renew)
        renewing.open()

    def release(self, pin: Pin) -> None:
        """Give a hold back. Twice does nothing more."""
        if pin.hold in self._given_back:
            return
        self._given_back.add(pin.hold)
        renewing = self._renewals.pop(pin.hold, None)
        if renewing is not None:
            renewing.stopping.set()  # (not waited for: a renewal may be at a node that does not answer)
        self._lease(pin, 0)

    def _lease(self, pin: Pin, lease_ms: int) -> None:
        """Those that are read come first: another one may take long to say nothing."""
        grouped: dict[tuple[str, str], list[int]] = {}
        every = [(place, [node]) for place, node in pin.nodes.items()]
        for (index, number), nodes in (*every, *pin.others.items()):
            for one in nodes:
                grouped.setdefault((index, one), []).append(number)
        for (index, node), slices in grouped.items():
            try:
                ask = PinAsk(index, slices, pin.number, pin.incarnation, pin.hold, lease_ms)
                self.call(node, ask, PinAnswer)
            except RetryableError as error:  # the next read tells, if it is gone
                log.debug("a hold was not renewed: %s", error.message)

    def records(self) -> list[IndexRecord]:
        """Those of the indexes that there are."""
        catalog = self._catalog()
        found = [catalog.index(index) for index in self._indexes]
        return [record for record in found if record is not None]

    def read(self, node: str, ask: Ask, kind: type[AnswerT]) -> AnswerT:
        """The answer of a node that holds what is read; asked once more when it cannot be asked, for a
        connection may have broken. Raises as `call`."""
        try:
            return self.call(node, ask, kind)
        except NodeUnavailableError:
            return self.call(node, ask, kind)

    def call(self, node: str, ask: Ask, kind: type[AnswerT]) -> AnswerT:
        """The answer of a node.

        Raises:
            PinLostError: it does not hold the snapshot any more.
            NodeUnavailableError: it cannot be asked.
            RetryableError: it does not answer this.
        """
        catalog = self._catalog()
        url = next((one.url for one in catalog.nodes() if one.id == node), None)
        if url is None or catalog.cluster is None:
            raise RetryableError(f"node {node} is not known", next_step="see `keytide node list`")
        try:
            answer: Answer = digests.decode_answer(
                self._nodes.ask(url + VERIFY_PATH, digests.encode(ask), catalog.cluster.secret)
            )
        except NoAnswerError as error:
            raise NodeUnavailableError(f"node {node} cannot be asked: {error}") from error
        except RefusedError as refused:
            family = PinLostError if refused.type == PinLostError.problem_type else RetryableError
            raise family(f"node {node} {refused}") from refused
        except UNDECODABLE as error:
            raise RetryableError(f"node {node} answers with something else: {error}") from error
        if not isinstance(answer, kind):
            raise RetryableError(f"node {node} answers another question")
        return answer
