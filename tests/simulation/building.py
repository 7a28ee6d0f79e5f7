"""The Spark driver of a build: micro-batches, winning and losing attempts, zombies, restarts; and the
coordinator's end of the build."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keytide.messages import BatchEnd, BuildEnd, encode
from keytide.timestamp import Timestamp
from tests.simulation.topics import PARTITIONS, SLICES
from tests.simulation.wire import TOPIC_ID, Version, put_chunk, removal_chunk, slice_of_key

if TYPE_CHECKING:
    from tests.simulation.world import World

Message = tuple[int, bytes]
"""(slice, record)."""
TASKS = 2


class SimBuild:
    """One build of one index, whose slices exist already.

    Attributes:
        final: the source's end after the final micro-batch was read (R25); None until then.
    """

    def __init__(self, world: World, index: str, build: str, version: int) -> None:
        self.world = world
        self.index = index
        self.build = build
        self.load = dict(world.topics.ends())
        self.final: Timestamp | None = None
        self._version = version
        self._run = 1
        self._attempts = 0
        self._ends: list[dict[int, int]] = []
        self._done = 0
        self._todo: list[Message] | None = None
        self._zombies: list[Message] = []
        self._ended = False

    def step(self) -> None:
        """Send one message; plan the next micro-batch when there is none; die now and then."""
        if self._ended:
            return
        chance = self.world.schedule.random
        if self._todo is None:
            self._plan()
        elif self.world.fault("driver", 0.03):
            self._crash()
        elif self._zombies and chance.random() < 0.2:
            self._append(*self._zombies.pop(0))
        elif self._todo:
            self._append(*self._todo.pop(0))
        if self._todo == []:
            self._todo = None
            self._done += 1
            self._end_if_passed()

    def _crash(self) -> None:
        """Of what was not sent some lands later; the next driver does the batch again."""
        chance = self.world.schedule.random
        self._zombies += [one for one in (self._todo or [])[:4] if chance.random() < 0.6]
        self._todo = None
        self._run += 1

    def _append(self, slice_number: int, data: bytes) -> None:
        self.world.topics.backfill[self.index, slice_number].append(data)

    # --- micro-batches ----------------------------------------------------------------------------------

    def _plan(self) -> None:
        """The offsets of a batch are fixed before it is first tried; what it reads of them is read now."""
        chance, topics = self.world.schedule.random, self.world.topics
        if self._done == len(self._ends):
            begin = self._begin()
            ends = topics.ends()
            self._ends.append({p: min(ends[p], begin[p] + chance.randint(1, 8)) for p in range(PARTITIONS)})
        begin, end = self._begin(), self._ends[self._done]
        versions = [topics.read(p, begin[p], end[p]) for p in range(PARTITIONS)]
        winners: dict[int, dict[str, int]] = {number: {} for number in range(SLICES)}
        streams = []
        for task in range(TASKS):
            attempt, messages = self._task(task, versions)
            for number, _ in messages:
                winners[number][attempt] = winners[number].get(attempt, 0) + 1
            streams.append(messages)
            if self.world.fault("speculative", 0.4):
                _, losing = self._task(task, versions)
                kept = [one for one in losing if chance.random() < 0.6]
                if chance.random() < 0.5:
                    self._zombies += kept
                else:
                    streams.append(kept)
        self._todo = self._interleave(streams) + self._batch_ends(begin, end, winners)

    def _begin(self) -> dict[int, int]:
        return self._ends[self._done - 1] if self._done else dict.fromkeys(range(PARTITIONS), 0)

    def _task(self, task: int, versions: list[list[Version]]) -> tuple[str, list[Message]]:
        """One attempt: the newest version per document of the task's share (its partitions), by slice."""
        self._attempts += 1
        attempt = f"a{self._attempts}"
        messages: list[Message] = []
        for number in range(SLICES):
            sequence = 0
            for partition in range(task, PARTITIONS, TASKS):
                newest = {version.id: version for version in versions[partition]}
                heard = sorted(newest.values(), key=lambda version: version.offset)
                if heard and (self._done > 0 or any(version.bad for version in heard)):
                    removal = removal_chunk(
                        heard,
                        build=self.build,
                        index=self.index,
                        slice_number=number,
                        slices=SLICES,
                        run=str(self._run),
                        number=self._done,
                        attempt=attempt,
                        sequence=sequence,
                        partition=partition,
                        heard=self._done > 0,
                    )
                    messages.append((number, encode(removal)))
                    sequence += 1
                entries = [
                    (key, version)
                    for version in heard
                    for key in version.keys
                    if not version.bad and slice_of_key(key, SLICES) == number
                ]
                entries.sort(key=lambda row: row[0] + row[1].id)
                for first in range(0, len(entries), 2):
                    puts = put_chunk(
                        entries[first : first + 2],
                        build=self.build,
                        index=self.index,
                        slice_number=number,
                        run=str(self._run),
                        number=self._done,
                        attempt=attempt,
                        sequence=sequence,
                    )
                    messages.append((number, encode(puts)))
                    sequence += 1
        return attempt, messages

    def _interleave(self, streams: list[list[Message]]) -> list[Message]:
        """Attempts run side by side; each one's messages stay in order."""
        chance = self.world.schedule.random
        left = [list(stream) for stream in streams if stream]
        mixed = []
        while left:
            stream = chance.choice(left)
            mixed.append(stream.pop(0))
            left = [one for one in left if one]
        return mixed

    def _batch_ends(
        self, begin: dict[int, int], end: dict[int, int], winners: dict[int, dict[str, int]]
    ) -> list[Message]:
        start, stop = Timestamp.of(begin, TOPIC_ID), Timestamp.of(end, TOPIC_ID)
        run = str(self._run)
        return [
            (number, encode(BatchEnd(self.build, self.index, number, run, self._done, start, stop, won)))
            for number, won in winners.items()
        ]

    # --- the end ------------------------------------------------------------------------------------------

    def _end_if_passed(self) -> None:
        """Past load and low-watermark timestamps: the coordinator ends the build (R23)."""
        reached = self._ends[self._done - 1]
        activations = self.world.topics.activations
        low = [activations.get((self._version, partition)) for partition in range(PARTITIONS)]
        passed = all(
            mark is not None and reached[partition] >= max(mark, self.load[partition])
            for partition, mark in enumerate(low)
        )
        if not passed:
            return
        self._ended = True
        self.final = Timestamp.of(self.world.topics.ends(), TOPIC_ID)
        self.world.schedule.note(f"build {self.build} passed after {self._done} batches at {reached}")
        for number in range(SLICES):
            end = encode(BuildEnd(self.build, self.index, number, 1, self._done))
            for _ in range(self.world.schedule.random.randint(1, 2)):
                delay = self.world.schedule.random.randint(0, 200)
                self.world.schedule.after(delay, lambda number=number, end=end: self._append(number, end))  # type: ignore[misc]
        for zombie in self._zombies:
            self.world.schedule.after(5, lambda zombie=zombie: self._append(*zombie))  # type: ignore[misc]
