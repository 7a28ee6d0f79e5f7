"""What slices under build sum up to, once they have loaded the last micro-batch (`keytide.wire.entry_sums`).

Theory of operation
===================
Every copy of every slice is asked, some at once, again and again until it has loaded what it was sent. Then
nothing else is in it: its mutation queue it reads only when the build's end tells it to. What is asked is
read part by part, so a node's thread is never taken for long. Who does not answer for a while, or loads
nothing for long, is given up: then nobody knows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final, Literal

from keytide.catalog.catalog import Catalog
from keytide.errors import RetryableError
from keytide.http.blocking_nodes import BlockingNodeClient
from keytide.http.node_protocol import RefusedError
from keytide.wire.entry_sums import NO_ENTRIES, BuiltAnswer, BuiltAsk, EntrySums
from streaming.core.comparing import CopySums, SliceCopy
from streaming.core.micro_batches import SliceTarget
from streaming.drivers.failures import StoppedError
from streaming.slices.pins import PinLostError, PinnedSlices

ROWS_PER_CALL: Final = 100_000
"""Some tenths of a second of a node's thread."""
AT_ONCE: Final = 4
"""Copies that are asked at once."""
POLL_S: Final = 0.1
FIRST_POLL_S: Final = 0.01
"""Before a copy is asked again for the first time, then twice as long each time up to `POLL_S`: slices load
what is small within some hundredths of a second."""
ANSWER_S: Final = 10.0
"""So long nothing may come back of a part."""
AWAY_S: Final = 60.0
"""So long a node may give no answer, before its copies are given up: it restarts sooner."""
LOAD_LIMIT_S: Final = 300.0
"""So long those that are left may show no progress."""
NEVER: Final = "invalid-request"
"""What a node of a release before says."""


class BuiltSlices(PinnedSlices):
    """The slices of the indexes of one build.

    Args:
        now: seconds, of a clock that only goes on.
    """

    def __init__(
        self,
        catalog: Callable[[], Catalog],
        indexes: Sequence[str],
        nodes: BlockingNodeClient,
        build: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(catalog, indexes, nodes)
        self._build = build
        self._now = now
        self._ending = threading.Event()

    def copies(self, targets: Sequence[SliceTarget]) -> list[SliceCopy]:
        """The copies of slices that the build fills; none of an index that is gone."""
        placed = {index.id: dict(enumerate(index.placement)) for index in self.records()}
        return [
            SliceCopy(number, node)
            for number, (index, slice_number) in enumerate(targets)
            for node in placed.get(index, {}).get(slice_number, ())
        ]

    def sums(
        self,
        targets: Sequence[SliceTarget],
        projected: Sequence[EntrySums],
        batch: int,
        follow: Callable[[], None],
    ) -> list[CopySums]:
        """Of every copy, when it has loaded this micro-batch.

        Args:
            projected: of each target.
            follow: called now and then; what it raises ends this.
        """
        found: list[CopySums] = []
        done_at = self._now()
        due = dict.fromkeys(self.copies(targets), done_at)
        """When a copy is asked (again)."""
        silent: dict[str, float] = {}
        """Since when a node has not answered."""
        pauses: dict[SliceCopy, float] = {}
        """How long a copy was last left alone."""
        told: dict[SliceCopy, str] = {}
        """How far it said that it is."""
        asked: dict[Future[EntrySums], SliceCopy] = {}
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="sums") as pool:
            try:
                while due or asked:
                    follow()
                    now = self._now()
                    for copy in [one for one, at in due.items() if at <= now]:
                        del due[copy]
                        wanted = projected[copy.target]
                        asked[pool.submit(self._sums, targets[copy.target], copy.node, batch, wanted)] = copy
                    for future in wait(asked, POLL_S, FIRST_COMPLETED).done:
                        copy, now = asked.pop(future), self._now()
                        try:
                            found.append(CopySums(copy, future.result()))
                            silent.pop(copy.node, None)
                            done_at = now
                            continue
                        except PinLostError as error:
                            silent.pop(copy.node, None)
                            why = error.message
                            if told.get(copy) != why:
                                told[copy], done_at = why, now
                            given_up = now - done_at > LOAD_LIMIT_S
                        except RetryableError as error:
                            why, cause = error.message, error.__cause__
                            given_up = now - silent.setdefault(copy.node, now) > AWAY_S
                            given_up |= isinstance(cause, RefusedError) and cause.type == NEVER
                        if given_up:
                            found.append(CopySums(copy, None, why))
                        else:
                            pauses[copy] = min(POLL_S, 2 * pauses.get(copy, FIRST_POLL_S / 2))
                            due[copy] = now + pauses[copy]
                    if due and not asked:
                        self._ending.wait(max(0.0, min(due.values()) - self._now()))
            except BaseException:
                self._ending.set()  # (what is being asked ends with its part)
                raise
        return sorted(found, key=lambda one: one.copy)

    def _sums(self, target: SliceTarget, node: str, batch: int, projected: EntrySums) -> EntrySums:
        """Of one copy; where it does not have as many entries as were projected, their number alone.

        Raises:
            PinLostError: it has not loaded the micro-batch.
            RetryableError: it does not answer.
        """
        found = NO_ENTRIES
        stages: tuple[Literal["forward", "back"], ...] = ("forward", "back")
        for stage in stages:
            after, more = b"", True
            while more:
                if self._ending.is_set():
                    raise StoppedError
                ask = BuiltAsk(*target, self._build, batch, stage, after, ROWS_PER_CALL)
                answer = self.read(node, ask, BuiltAnswer)
                if answer.held != projected.entries:
                    return EntrySums(answer.held)
                part = (answer.entries, answer.total, 0) if stage == "forward" else (0, 0, answer.total)
                found = found.plus(EntrySums(*part))
                after, more = answer.reached, answer.more
        return found
