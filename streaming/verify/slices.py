"""Asking nodes what their slices hold, for verification (`keytide.wire.digests`).

Theory of operation
===================
`pin` chooses the newest snapshot number that every slice of all indexes has, and holds it on each under one
id, until `release`; a thread renews the hold. Numbers are shared by all indexes of a keyspace, so one pin is
one cut through all of them. It works for indexes that are not READY too.

Of each slice one copy is compared with the source: the first that holds the snapshot. When it does not any
more (its node has restarted, the keyspace was rolled back), what was begun is worth nothing: `PinLostError`,
and the job begins again with a newer snapshot, of another copy if need be. The other copies that hold it are
compared with that one: at one number they are the same (R47). Copies that do not, hold up nothing.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar, get_args

import numpy as np

from keytide.catalog.catalog import Catalog
from keytide.catalog.records import IndexRecord
from keytide.errors import UNDECODABLE, RetryableError
from keytide.http.blocking_nodes import BlockingNodeClient
from keytide.http.node_protocol import NoAnswerError, NodeUnavailableError, RefusedError
from keytide.model.timestamp import Timestamp
from keytide.process.worker import Worker, logged
from keytide.wire import digests
from keytide.wire.digests import (
    VERIFY_PATH,
    Answer,
    Ask,
    BackRow,
    DigestAnswer,
    DigestAsk,
    DuplicateKey,
    PinAnswer,
    PinAsk,
    RowsAnswer,
    RowsAsk,
    SlicePin,
    Stage,
    Sums,
)

log = logging.getLogger(__name__)

LEASE_MS: Final = 120_000
RENEW_S: Final = 20.0
PIN_LIMIT_S: Final = 60.0
"""For a number that all slices hold at once."""
PIN_PAUSE_S: Final = 0.05
ROWS_PER_CALL: Final = 100_000
"""Rows of a slice that one call looks at: some tenths of a second of a node's thread."""
ROWS_BYTES: Final = 8 << 20
DUPLICATES: Final = 100_000
"""Pairs with one key that are taken down of one slice at most."""
AT_ONCE: Final = 4
"""Slices that are asked at once."""

AnswerT = TypeVar("AnswerT", PinAnswer, DigestAnswer, RowsAnswer)
PageT = TypeVar("PageT", DigestAnswer, RowsAnswer)
Place = tuple[str, int]
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
        others: (index id, slice) -> further nodes whose copies hold it.
    """

    number: int
    incarnation: int
    timestamp: Timestamp
    hold: str
    nodes: dict[Place, str]
    entries: dict[str, int] = field(default_factory=dict)
    others: dict[Place, list[str]] = field(default_factory=dict)

    def on(self, place: Place, node: str) -> Pin:
        """The same of one copy of one slice."""
        return replace(self, nodes={place: node}, others={})


class SliceClient:
    """The slices of some indexes of one keyspace.

    Args:
        catalog: gives the dictionary as it is now (from any thread).
        indexes: index ids.
        nodes: asks them; closed with this.
    """

    def __init__(
        self, catalog: Callable[[], Catalog], indexes: Sequence[str], nodes: BlockingNodeClient
    ) -> None:
        self._catalog = catalog
        self._indexes = list(indexes)
        self._nodes = nodes
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="slices")
        self._renewals: dict[str, Worker] = {}
        self._silent: set[str] = set()
        """Nodes that did not answer when they were last asked for a snapshot."""

    def close(self) -> None:
        for renewing in self._renewals.values():
            renewing.stopping.set()
        self._pool.shutdown(cancel_futures=True)
        self._nodes.close()

    def tables_taken_at(self) -> dict[int, int]:
        """Source partition -> the offset at which the table was taken that an index began with (the largest,
        of several): what its slices hold of records below is the table's. Empty when all began with the log,
        as they do with a topic that was made anew since."""
        catalog = self._catalog()
        found: dict[int, int] = {}
        for index in self._records():
            build, keyspace = catalog.build(index.build or ""), catalog.keyspace(index.keyspace)
            origin = build.origin if build is not None else None
            if origin is None or keyspace is None or origin.topic_id != keyspace.topic_id:
                continue
            for partition, offset in origin.offsets.items():
                found[partition] = max(found.get(partition, 0), offset)
        return found

    # --- holding ------------------------------------------------------------------------------------------

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
                found = self._try_pin(at_least)
                self._keep(found)
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

    def _try_pin(self, at_least: Timestamp | None) -> Pin:
        newest, _, why = self._ask_pins(-1, -1, "", 0)
        if why:
            raise RetryableError(why)
        number = min(one.number for _, one in newest.values())
        sample = next((one for _, one in newest.values() if one.number == number), None)
        if number < 0 or sample is None:
            raise RetryableError("a slice has no snapshot yet")
        if at_least is not None and not sample.timestamp.covers(at_least):
            raise RetryableError("the newest snapshot is older than what is wanted")
        hold = f"verify-{uuid.uuid4().hex}"
        held, others, why = self._ask_pins(number, sample.incarnation, hold, LEASE_MS)
        timestamps = [one.timestamp for _, one in held.values()]
        if any(one.offsets() != sample.timestamp.offsets() for one in timestamps):
            why = f"slices say different timestamps of snapshot {number}"
        entries: dict[str, int] = {}
        for (index, _), (_, one) in held.items():
            entries[index] = entries.get(index, 0) + one.entries
        nodes = {place: node for place, (node, _) in held.items()}
        pin = Pin(number, sample.incarnation, sample.timestamp, hold, nodes, entries, others)
        if why:  # (it is tried again at once: what other slices hold would pile up until it runs out)
            self._lease(pin, 0)
            raise RetryableError(why)
        return pin

    def _ask_pins(
        self, number: int, incarnation: int, hold: str, lease_ms: int
    ) -> tuple[dict[Place, tuple[str, SlicePin]], dict[Place, list[str]], str]:
        """The answers of slices, further nodes that hold the same of them, and why an answer is missing, ""
        when none is. With `number` -1 the newest snapshot of all copies of a slice; else of the first copy
        that holds it. Nodes that did not answer the last time are asked last, for what is missing still."""
        found: dict[Place, tuple[str, SlicePin]] = {}
        others: dict[Place, list[str]] = {}
        for index in self._records():
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
                    answer = self._call(node, ask, PinAnswer)
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

    def _keep(self, pin: Pin) -> None:
        """Renew a hold until it is given back."""

        def renew() -> None:
            while not renewing.stopping.wait(RENEW_S):
                self._lease(pin, LEASE_MS)

        renewing = self._renewals[pin.hold] = Worker("renew", logged, renew)
        renewing.open()

    def release(self, pin: Pin) -> None:
        """Give a hold back."""
        renewing = self._renewals.pop(pin.hold, None)
        if renewing is not None:
            renewing.stopping.set()  # (not waited for: a renewal may be at a node that does not answer)
            self._lease(pin, 0)

    def _lease(self, pin: Pin, lease_ms: int) -> None:
        grouped: dict[tuple[str, str], list[int]] = {}
        for (index, number), node in pin.nodes.items():
            for one in (node, *pin.others.get((index, number), ())):
                grouped.setdefault((index, one), []).append(number)
        for (index, node), slices in grouped.items():
            try:
                ask = PinAsk(index, slices, pin.number, pin.incarnation, pin.hold, lease_ms)
                self._call(node, ask, PinAnswer)
            except RetryableError as error:  # the next read tells, if it is gone
                log.debug("a hold was not renewed: %s", error.message)

    # --- reading ------------------------------------------------------------------------------------------

    def digests(
        self, pin: Pin, bits: int, floors: dict[int, int]
    ) -> Iterator[tuple[Place, Sums, int, list[DuplicateKey]]]:
        """Digests of every slice as they are done: the sums, documents and entries left out, duplicates.

        Raises:
            PinLostError: a slice does not hold the snapshot any more.
        """
        yield from self._pool.map(lambda place: self._digest(pin, place, bits, floors), sorted(pin.nodes))

    def _digest(
        self, pin: Pin, place: Place, bits: int, floors: dict[int, int]
    ) -> tuple[Place, Sums, int, list[DuplicateKey]]:
        total = digests.no_sums(bits)
        left_out = 0
        duplicates: list[DuplicateKey] = []
        ask = partial(DigestAsk, *place, pin.number, pin.incarnation, bits=bits, floors=floors)
        for stage, answer in self._pages(pin, place, ask, DigestAnswer):
            total += np.frombuffer(answer.sums, "<u8").reshape(total.shape)
            left_out += answer.left_out if stage == "forward" else 0
            duplicates += answer.duplicates[: DUPLICATES - len(duplicates)]
        return place, total, left_out, duplicates

    def apart(
        self, pin: Pin, bits: int, floors: dict[int, int], sums: Mapping[Place, Sums]
    ) -> Iterator[tuple[Place, str, list[int]]]:
        """Copies that are not as the one that was asked, by node, and in which buckets. One that does not
        hold the snapshot any more, or cannot be asked, is left out.

        Args:
            sums: what `digests` had for the same arguments.
        """

        def compare(one: tuple[Place, str]) -> tuple[Place, str, list[int]]:
            place, node = one
            try:
                _, mine, _, _ = self._digest(pin.on(place, node), place, bits, floors)
            except RetryableError as error:
                log.warning("slice %d of %s on node %s is not compared: %s", place[1], place[0], node, error)
                return place, node, []
            differs: list[int] = np.flatnonzero((mine != sums[place]).any(axis=0)).tolist()
            return place, node, differs

        copies = [(place, node) for place, nodes in sorted(pin.others.items()) for node in nodes]
        yield from (one for one in self._pool.map(compare, copies) if one[2])

    def rows(
        self, pin: Pin, places: Iterable[Place], bits: int, buckets: Sequence[int], ids: Sequence[bytes]
    ) -> Iterator[tuple[Place, list[tuple[bytes, bytes, bytes]], list[BackRow]]]:
        """What slices hold of documents in some buckets, or with some ids: entries as (id, key, value), and
        what the back index has.

        Raises:
            PinLostError: a slice does not hold the snapshot any more.
        """
        yield from self._pool.map(
            lambda place: self._rows(pin, place, bits, list(buckets), list(ids)), sorted(places)
        )

    def _rows(
        self, pin: Pin, place: Place, bits: int, buckets: list[int], ids: list[bytes]
    ) -> tuple[Place, list[tuple[bytes, bytes, bytes]], list[BackRow]]:
        entries: list[tuple[bytes, bytes, bytes]] = []
        back: list[BackRow] = []
        where = (*place, pin.number, pin.incarnation)
        ask = partial(RowsAsk, *where, bits=bits, buckets=buckets, ids=ids, bytes_limit=ROWS_BYTES)
        for _, answer in self._pages(pin, place, ask, RowsAnswer):
            entries += answer.entries
            back += answer.back
        return place, entries, back

    def _pages(
        self, pin: Pin, place: Place, ask: Callable[..., Ask], kind: type[PageT]
    ) -> Iterator[tuple[Stage, PageT]]:
        """What a slice answers of its entries, then of its back index, part by part.

        Args:
            ask: makes the question, all but `stage`, `after` and `limit`.
        """
        for stage in get_args(Stage):
            after, more = b"", True
            while more:
                question = ask(stage=stage, after=after, limit=ROWS_PER_CALL)
                try:
                    answer = self._call(pin.nodes[place], question, kind)
                except NodeUnavailableError:  # a connection that broke, say
                    answer = self._call(pin.nodes[place], question, kind)
                yield stage, answer
                after, more = answer.reached, answer.more

    def _records(self) -> list[IndexRecord]:
        catalog = self._catalog()
        found = [catalog.index(index) for index in self._indexes]
        return [record for record in found if record is not None]

    def _call(self, node: str, ask: Ask, kind: type[AnswerT]) -> AnswerT:
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
