"""The course of one start of a build's driver: the order of its steps, from what an earlier driver has left
to the end (`streaming.backfill.driver` has the whole story).

The process around it, with Spark, Kafka and the metadata, is an argument (`DriverShell`). As in
`streaming.backfill.batches` what takes its time is awaited, and the real process blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from keytide.catalog.records import BuildRecord, KeyspaceRecord
from keytide.catalog.table_origin import TableOrigin
from keytide.errors import RetryableError
from keytide.model.timestamp import Timestamp
from keytide.model.words import few
from keytide.process.sync_points import reach
from keytide.wire.entry_sums import EntrySums
from streaming.backfill.batches import Batches, BuildPlan, Wait
from streaming.backfill.table_origin import begins_at
from streaming.core import micro_batches as core
from streaming.core.comparing import UNKNOWN, CopySums, verdict
from streaming.drivers import failures
from streaming.drivers.journal import JournalLostError
from streaming.drivers.outage import Outage
from streaming.drivers.progress import Status

log = logging.getLogger(__name__)

ACTIVATION_LIMIT_S = 10.0
"""With nothing to read, this long for projectors to activate the build before Spark is started."""
POLL_S = 0.1
READINGS = 5
"""Of another layout by one driver. (Its deaths are counted, and their causes told.)"""
NAMED = 5
"""Partitions that are named."""
AGAIN_S = 1.0
"""Before what failed is tried again."""


class DriverShell(Protocol):
    """The process of a driver.

    Attributes:
        build: its record, as last taken in.
    """

    build: BuildRecord

    def follow(self) -> None:
        """Take in what the metadata says now.

        Raises:
            StoppedError: the build is not wanted any more, or the driver is asked to end.
        """
        ...

    async def wait(self, seconds: float) -> None:
        """Returns after a while, sooner when the driver is asked to end."""
        ...

    def seconds(self) -> float:
        """Of a clock that only goes on."""
        ...

    def wall(self) -> int:
        """Milliseconds, as Kafka's record timestamps count."""
        ...

    async def begin_reading(self, table: bool) -> None:
        """Start what reads: Spark, where there is much.

        Args:
            table: the build's table is to be read.
        """
        ...

    def limit(self, rate: int) -> None:
        """The rate limit is so many documents per second, 0 for none."""
        ...

    async def run_table(
        self, origin: TableOrigin, work: Callable[[], Coroutine[Any, Any, None]], follow: Callable[[], None]
    ) -> None:
        """Have `work` read the table (`Batches.run_table`).

        Args:
            follow: called now and then meanwhile.
        """
        ...

    async def run_seed(
        self, work: Callable[[], Coroutine[Any, Any, None]], follow: Callable[[], None]
    ) -> None:
        """Have `work` read the layout that the build begins with (`Batches.run_seed`). `follow` as in
        `run_table`."""
        ...

    async def start_query(self) -> None:
        """Have what there is to read planned, and given to `Batches.run`, round after round."""
        ...

    def ended(self) -> BaseException | None:
        """Why the query has ended; None while it goes on."""
        ...

    def stop_query(self) -> None:
        """End the query, and all waiting."""
        ...

    async def held_sums(self, projected: Sequence[EntrySums], batch: int) -> Sequence[CopySums]:
        """What every copy of the slices that the build fills stores, once it has loaded its last
        micro-batch. Raises as `follow`.

        Args:
            projected: for each target.
        """
        ...

    def tell(self) -> None:
        """Say now how far the build is."""
        ...


def take_up(
    build: BuildRecord, keyspace: KeyspaceRecord, status: Status, earliest: Callable[[], Mapping[int, int]]
) -> None:
    """Go on where the build is, by its journal.

    Args:
        earliest: the offsets at which the source begins now.

    Raises:
        JournalLostError: the build has read what the journal does not tell of.
    """
    journal = status.journal
    if core.forgotten(build, journal.first_read_at):
        raise JournalLostError(f"Kafka does not have the journal of build {build.id}")
    if journal.begin is None:
        journal.begin = dict(build.origin.offsets if build.origin else earliest())
    begin = Timestamp.of(journal.begin, keyspace.topic_id)
    position = Timestamp.of(journal.newest.reached, keyspace.topic_id) if journal.newest else begin
    if build.seed:  # what the build was told that it is of stands: nothing of the source is read
        position, begin = journal.read if journal.table_read else Timestamp(), Timestamp()
    status.resume(journal.finished, position, begin)


async def wait_out(
    error: BaseException, outage: Outage, finished: int, build: str, now: float, wait: Wait
) -> None:
    """Wait a moment before what failed is tried again.

    Args:
        finished: number of the last micro-batch that is done.
        now: seconds.

    Raises:
        BaseException: `error`, if waiting does not help, or has not for long.
    """
    failure = failures.diagnose(error)
    if not failure.away or outage.over(finished, now):
        raise error
    log.warning("build %s: %s; tried again", build, failure.message)
    await wait(AGAIN_S)


class BuildCourse:
    """Runs a build to its end.

    Args:
        partitions: of the source.
        outage: how long Kafka may be away.
        activation_s: see `ACTIVATION_LIMIT_S`.
    """

    def __init__(
        self,
        plan: BuildPlan,
        partitions: int,
        status: Status,
        batches: Batches,
        shell: DriverShell,
        outage: Outage,
        activation_s: float = ACTIVATION_LIMIT_S,
    ) -> None:
        self._plan = plan
        self._partitions = partitions
        self._status = status
        self._batches = batches
        self._shell = shell
        self._outage = outage
        self._activation_s = activation_s

    async def run(self) -> None:
        """Until the build has passed.

        Raises:
            StoppedError: it is not wanted any more, or the driver is asked to end.
            Exception: it failed.
        """
        status = self._status
        if self._shell.build.seed and not status.journal.table_read:
            await self._take_seed()
        if not self._table_left and (
            status.journal.nothing_to_read is not None or await self._passed_already()
        ):
            await self._pass()
            return
        await self._shell.begin_reading(self._table_left)
        self._follow_rate()
        origin = self._shell.build.origin
        if origin is not None and self._table_left:
            status.begin_reading(self._shell.wall())
            begin = begins_at(origin)
            await self._shell.run_table(origin, lambda: self._batches.run_table(begin), self._follow)
        await self._start_query()
        try:
            while not status.try_close(self._passed):
                if (error := self._shell.ended()) is not None:
                    await self._wait_out(error)
                    await self._start_query()
                await self._shell.wait(POLL_S)
                self._follow()
            await self._pass()
        finally:
            status.close()
            self._shell.stop_query()

    async def _take_seed(self) -> None:
        """Read the layout that the build begins with, as soon as it has what the build must reach. What is in
        the way is told; whether it still can be had, the coordinator watches."""
        status, shell = self._status, self._shell
        failures = 0
        while True:
            self._follow()
            goal = core.goal(shell.build, self._partitions)
            if goal is None:
                known = shell.build.low_watermark
                missing = few((p for p in range(self._partitions) if p not in known), NAMED)
                status.enter("RUNNING", f"projectors to say where its queues begin, of partitions {missing}")
                await shell.wait(POLL_S)
                continue
            try:
                await shell.run_seed(partial(self._batches.run_seed, goal), self._follow)
            except RetryableError as error:
                status.enter("RUNNING", error.message)
                failures += status.rows_total > 0  # (what was sent is in the queues, and on disks of nodes)
                if failures >= READINGS:
                    raise
                await shell.wait(AGAIN_S * 2**failures)
            else:
                status.enter("RUNNING")
                return

    @property
    def _table_left(self) -> bool:
        """Whether the build begins with a table that is not in the queues yet."""
        build = self._shell.build
        return build.origin is not None and not build.seed and not self._status.journal.table_read

    async def _wait_out(self, error: BaseException) -> None:
        shell, finished = self._shell, self._status.finished
        await wait_out(error, self._outage, finished, self._plan.build, shell.seconds(), shell.wait)

    async def _start_query(self) -> None:
        while True:
            try:  # Spark would begin at a place that the log does not have, and find nothing
                await self._batches.check_read()
                break
            except RetryableError as error:
                await self._wait_out(error)
        self._status.begin_reading(self._shell.wall())  # from here on Spark asks for the source's offsets
        await self._shell.start_query()

    def _follow(self) -> None:
        self._shell.follow()
        self._follow_rate()

    def _follow_rate(self) -> None:
        self._batches.rate = self._shell.build.rate_limit
        self._shell.limit(self._batches.rate)

    def _passed(self, position: Timestamp) -> bool:
        return core.passed(position, self._shell.build, self._partitions)

    async def _passed_already(self) -> bool:
        """Whether there is nothing to do for Spark: a finished backfill, or nothing in the source."""
        deadline = self._shell.seconds() + self._activation_s
        while self._status.position.covers(self._shell.build.load_timestamp):
            if self._status.try_close(self._passed):
                return True
            if self._status.journal.pending or self._shell.seconds() > deadline:
                return False
            await self._shell.wait(POLL_S)
            self._shell.follow()
        return False

    async def _pass(self) -> None:
        """Say that the build has passed; with nothing to read, slices get an empty micro-batch first."""
        status, plan = self._status, self._plan
        empty = status.journal.nothing_to_read
        if status.finished < 0 or empty is not None:
            end = Timestamp.of(empty or status.position.offsets(), plan.topic_id)
            status.finish_empty(end)
            await self._batches.send_ends(0, end, end, [{} for _ in plan.targets])
        if plan.summed:
            await self._compare()
        reach("driver-passed")
        status.enter("PASSED")
        self._shell.tell()
        log.info("build %s: passed after %d micro-batches", plan.build, status.finished + 1)

    async def _compare(self) -> None:
        """Compare what slices store with what was projected for them (R55)."""
        status, plan = self._status, self._plan
        projected = status.journal.projected(len(plan.targets))
        if projected is None:
            status.compared = UNKNOWN
            return
        status.comparing = True
        held = await self._shell.held_sums(projected, status.finished)
        status.compared = verdict(plan.targets, projected, held)
        log.info(
            "build %s: sums of what was projected and of what slices store: %s", plan.build, status.compared
        )
