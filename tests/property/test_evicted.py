"""A slice that holds next to nothing, and so lets go of what it cannot apply again and again, on queues with
what elections have lost, copies that come late, and timestamps that come another way, in a process that is
killed now and then: every number that it commits is the source at that moment, and it comes to the last one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from indexer.slice import following
from indexer.slice.core import SliceCore
from indexer.slice.events import Apply, Decide, Done, Instruction, MutationData, ReadMutations, Stamped
from indexer.slice.limits import SliceLimits
from indexer.store.formats.state_bytes import decode_applied, encode_state
from indexer.store.interface import UNNUMBERED, Applied
from keytide.model.timestamp import Place, Timestamp
from keytide.wire.columns import heard_offsets
from keytide.wire.messages import Segment, StabilityTimestamp, encode
from tests import share
from tests.simulation.wire import TOPIC_ID, Version, batch, segment

PARTITIONS = 2
TURNS = 400
EMPTY = 0.1


def document(partition: int, offset: int, epoch: int) -> bytes:
    return b"%d-%d-%d" % (partition, offset, epoch)


@dataclass
class Log:
    """A source partition. Of leader epoch 0 up to `lost` and then of epoch 1; what epoch 0 had from there up
    to `before`, an election has lost.

    Attributes:
        empty: offsets without a document (markers of transactions).
    """

    number: int
    lost: int
    before: int
    end: int
    empty: frozenset[int]

    def epoch(self, offset: int) -> int:
        return int(offset >= self.lost)

    def place(self, offset: int) -> Place:
        return Place(offset, self.epoch(offset - 1) if offset else -1)

    def documents(self, offset: int) -> set[bytes]:
        """Of all records below."""
        return {document(self.number, one, self.epoch(one)) for one in range(offset) if one not in self.empty}

    def segments(self, chance: Random, start: int, end: int, epoch: int) -> list[Segment]:
        """[start, end) as a sender sends it that has read it of this epoch, in pieces."""
        sent: list[Segment] = []
        while start < end:
            until = min(end, start + chance.choice((1, 2, 5)))
            versions = [
                Version(self.number, one, document(self.number, one, epoch), (b"k%d" % one,))
                for one in range(start, until)
                if one not in self.empty
            ]
            piece = segment(self.number, start, until, versions, epoch=epoch)
            sent.append(
                replace(piece, below=self.epoch(start - 1) if epoch and start else -1 if not start else 0)
            )
            start = until
        return sent


def merged(chance: Random, *streams: list[Segment]) -> list[Segment]:
    """All of them, each in its order."""
    left = [list(stream) for stream in streams if stream]
    out: list[Segment] = []
    while left:
        stream = chance.choice(left)
        out.append(stream.pop(0))
        left = [one for one in left if one]
    return out


@dataclass(frozen=True)
class Fold:
    """What a killed process comes back with.

    Attributes:
        stamped: how many timestamps were read, as the store keeps with it.
    """

    applied: Applied
    state: frozenset[bytes]
    stamped: int


@dataclass
class World:
    """A slice, its queue, and the timestamps of the control topic."""

    chance: Random
    documents: int
    logs: list[Log] = field(default_factory=list)
    state: set[bytes] = field(default_factory=set)
    committed: int = UNNUMBERED

    def __post_init__(self) -> None:
        chance = self.chance
        streams: list[list[Segment]] = []
        for number in range(PARTITIONS):
            lost, more, new = chance.randint(0, 8), chance.choice((0, 0, 1, 3, 6)), chance.randint(0, 8)
            end = lost + new
            empty = frozenset(one for one in range(end) if chance.random() < EMPTY)
            log = Log(number, lost, lost + more, end, empty)
            self.logs.append(log)
            first = log.segments(chance, 0, log.before, 0)
            again = chance.randint(0, log.before) if chance.random() < 0.3 else log.before
            copies = log.segments(chance, again, log.before, 0)
            # The next owner begins where the first one has committed, or before: what lies below was sent.
            known = chance.randint(0, len(first))
            begin = min(lost, chance.randint(0, first[known - 1].end) if known else 0)
            second = log.segments(chance, begin, lost, 0) + log.segments(chance, lost, end, 1)
            streams.append([*first[:known], *merged(chance, [*first[known:], *copies], second)])
        self.queue = merged(chance, *streams)
        self.stamps: list[Timestamp] = []
        reached = [0] * PARTITIONS
        while reached != [log.end for log in self.logs] or not self.stamps:
            reached = [
                min(log.end, at + chance.choice((0, 0, 1, 4)))
                for at, log in zip(reached, self.logs, strict=True)
            ]
            places = {log.number: log.place(at) for at, log in zip(reached, self.logs, strict=True)}
            self.stamps.append(Timestamp(places, TOPIC_ID))
        limits = SliceLimits(documents=self.documents, bytes=1 << 20, gap_ms=1 << 40)
        zero = Timestamp(dict.fromkeys(range(PARTITIONS), Place(0)), TOPIC_ID)
        self.core = SliceCore("i", 0, Applied(timestamp=zero), limits)
        self.cursor = 0
        self.numbers = 0
        self.folded = Fold(self.core.applied, frozenset(), 0)
        self.obey(self.core.start())

    def fold(self) -> None:
        self.folded = Fold(self.core.applied, frozenset(self.state), self.numbers)

    def kill(self) -> None:
        applied, state, self.numbers = self.folded.applied, self.folded.state, self.folded.stamped
        self.state, self.committed = set(state), applied.number
        self.core = self.core.anew(decode_applied(encode_state(applied)))
        self.obey(self.core.start())

    def stamp(self) -> None:
        """The next timestamp; the last one again and again (R7)."""
        timestamp = self.stamps[min(self.numbers, len(self.stamps) - 1)]
        self.numbers += 1
        message = StabilityTimestamp("ks", 1, 0, timestamp, 0, 0)
        self.obey(self.core.handle(Stamped(self.numbers, message)))

    def hear(self) -> None:
        if self.cursor < len(self.queue) and not self.core.paused:
            self.cursor += 1
            data = encode(batch([self.queue[self.cursor - 1]]))
            self.obey(self.core.handle(MutationData(data, self.cursor - 1)))

    def decide(self) -> None:
        self.obey(self.core.handle(Decide(0)))

    def obey(self, instructions: list[Instruction]) -> None:
        for one in instructions:
            if isinstance(one, ReadMutations):
                assert one.position <= self.cursor
                self.cursor = one.position
            elif isinstance(one, Apply):
                self.apply(one)
                self.obey(self.core.handle(Done(one.applied)))
        assert self.core.state != "STOPPED", self.core.reason

    def apply(self, one: Apply) -> None:
        for piece in one.segments:
            self.state |= {
                document(piece.partition, int(offset), piece.epoch)
                for offset in (heard_offsets(piece.heard, piece.start) if piece.heard else ())
            }
        if one.applied.number == UNNUMBERED:
            return
        self.committed = one.applied.number
        timestamp = one.applied.timestamp
        expected = set[bytes]().union(*(log.documents(timestamp.offset(log.number)) for log in self.logs))
        assert self.state == expected, f"number {self.committed} at {timestamp}"


@given(
    seed=st.integers(0, 1 << 32),
    documents=st.sampled_from([1, 2, 3, 6]),
    wait=st.sampled_from([1, 2, 16]),
    killed=st.booleans(),
)
@settings(max_examples=share.examples(200), deadline=None)
def test_a_slice_that_lets_go_is_never_torn_and_comes_to_the_end(
    seed: int, documents: int, wait: int, killed: bool
) -> None:
    history(seed, documents, wait, killed)


def test_histories_that_are_kept() -> None:
    """Those that the planted faults need."""
    for seed in range(60):
        history(seed, 1 + seed % 3, 1, killed=False)
        history(seed, 1 + seed % 3, 1, killed=True)


def history(seed: int, documents: int, wait: int, killed: bool) -> None:
    """One slice from its start to the last timestamp."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(following, "WAIT_LIMIT", wait)
        world = World(Random(seed), documents)
        steps = [*(world.stamp, world.hear, world.decide) * 6, *[world.fold, world.kill] * killed]
        for _ in range(150):
            world.chance.choice(steps)()
        for _ in range(TURNS):
            if world.core.applied.timestamp.covers(world.stamps[-1]) and world.committed >= len(world.stamps):
                return
            if world.core.state == "LOST":  # it applied to make room what an election had lost (R30)
                assert any(log.before > log.lost for log in world.logs), world.core.reason
                return
            world.hear()
            world.decide()
            world.stamp()
        raise AssertionError(f"it stands at {world.core.applied}, heard {world.core.heard()}")
