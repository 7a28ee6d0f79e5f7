"""Whatever is lost, comes twice or begins again, whoever leads: who follows the heartbeats of a node has just
what it said, or leaves them alone; and has it soon. What a leader knows of nodes is what it would know if
each of the heartbeats that have reached it said all, as soon as one has; and nobody is silent who speaks."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from coordinator.core.failure_detector import FailureDetector
from coordinator.core.nodes import HeardNodes
from keytide.catalog.catalog import Catalog
from keytide.model.protocol import CHANGES
from keytide.model.timestamp import Place, Timestamp
from keytide.wire.heartbeats import WHOLE_EACH, WHOLE_MS, HeartbeatWriter, follow
from keytide.wire.messages import HeartbeatChanges, NodeHeartbeat, SliceStatus, decode, encode
from tests import share


def timestamp(chance: Random, before: Timestamp) -> Timestamp:
    """A later one, now and then of something else."""
    places = dict(before.places)
    if chance.random() < 0.1:
        places[chance.randrange(6)] = Place(chance.randrange(9), chance.randrange(3), chance.randrange(2))
    if chance.random() < 0.03:
        places.pop(min(places, default=0), None)
    moved = {
        number: Place(place.offset + chance.choice((0, 1, 400)), place.epoch, place.tail)
        for number, place in sorted(places.items(), key=lambda _: chance.random())
    }
    return Timestamp(moved, "t2" if chance.random() < 0.02 else before.topic_id)


def slices(chance: Random, before: list[SliceStatus]) -> list[SliceStatus]:
    """What they say next: some move together."""
    at = before[0].timestamp if before else Timestamp({}, "t1")
    now, found = timestamp(chance, at), list[SliceStatus]()
    for status in before:
        if chance.random() < 0.5:
            status = replace(status, timestamp=now if status.timestamp is at else status.timestamp)
            status = replace(status, number=status.number + 1, entries=chance.randrange(1 << 40))
        if chance.random() < 0.1:
            status = replace(
                status, state=chance.choice(("LIVE", "STOPPED")), reason=chance.choice(("", "x"))
            )
        found.append(status)
    if chance.random() < 0.1 or not found:
        found.insert(
            chance.randrange(len(found) + 1),
            SliceStatus("i", chance.randrange(99), "LIVE", "", at, 1, -1, 0, 0, 0, 0, 0, 0, 0),
        )
    if len(found) > 1 and chance.random() < 0.05:
        found.pop(chance.randrange(len(found)))
    return found


@settings(max_examples=share.examples(400), deadline=None)
@given(st.integers(0, 1 << 40), st.sampled_from((0.0, 0.1, 0.4)))
def test_who_follows_has_what_was_said(seed: int, losses: float) -> None:
    chance = Random(seed)
    writer, started, term, protocol, said = HeartbeatWriter(), 1, 1, CHANGES, list[SliceStatus]()
    pictures: dict[tuple[int, int], list[SliceStatus]] = {}
    held: list[bytes] = []
    known: NodeHeartbeat | None = None
    for _ in range(80):
        if chance.random() < 0.03:
            writer, started = HeartbeatWriter(), started + chance.choice((-1, 1, 5))
            pictures = {key: one for key, one in pictures.items() if key[0] != started}
            held = []  # (a process that starts in the same millisecond as one before follows it much later)
            known = known if known is None or known.started_at != started else None
        if chance.random() < 0.05:
            term, protocol = term + 1, chance.choice((CHANGES - 1, CHANGES, CHANGES))
        said = slices(chance, said)
        beat = NodeHeartbeat("n", "u", started, 0, said, chance.randrange(9), 2, 3, protocol=CHANGES)
        message = writer.write(beat, term, protocol)
        assert protocol >= CHANGES or message == beat
        if message.sequence >= 0:
            pictures[started, message.sequence] = said
        arrived = [encode(message)] if chance.random() >= losses else []
        if held and chance.random() < losses:
            arrived.insert(chance.randrange(len(arrived) + 1), chance.choice(held))
        held = [*held, encode(message)][-4:]
        for data in arrived:
            got = decode(data)
            assert isinstance(got, NodeHeartbeat | HeartbeatChanges)
            heard = follow(known, got)
            if heard is not None:
                known = heard
                if heard.sequence >= 0:
                    assert heard.slices == pictures[heard.started_at, heard.sequence]
        current = known is not None and known.started_at == started and known.slices == said
        assert losses or current
    for _ in range(WHOLE_EACH):
        message = writer.write(replace(beat, slices=said), term, protocol)
        known = follow(known, message) or known
    assert known is not None
    assert known.slices == said


TIMEOUT_MS, BEAT_MS, TICK_MS = 3_000, 500, 250


class Leader:
    """What the leader of one term knows of a node, beside one to whom every heartbeat says all."""

    def __init__(self) -> None:
        self.detectors = FailureDetector(60_000), FailureDetector(60_000)
        self.changes, self.whole = (HeardNodes(TIMEOUT_MS, one, 60_000) for one in self.detectors)
        for one in (self.changes, self.whole):
            one.catalog_changed(Catalog())
        self.said: dict[int, NodeHeartbeat] = {}
        """By start of the process, the last that has come."""
        self.missed: set[int] = set()
        """Starts of processes of which something was lost, and all was not said since."""

    def tick(self, now: int) -> None:
        for detector, one in zip(self.detectors, (self.changes, self.whole), strict=True):
            detector.tick(now)
            one.tick()

    def hear(self, data: bytes, beat: NodeHeartbeat, now: int) -> None:
        """A heartbeat has come: `data`, which stands for `beat`."""
        message = decode(data)
        assert isinstance(message, NodeHeartbeat | HeartbeatChanges)
        self.whole.heartbeat(beat, now)
        found = self.changes.in_full(message)
        if found is not None:
            self.changes.heartbeat(found, now)
        self.said[beat.started_at] = beat
        if isinstance(message, NodeHeartbeat):
            self.missed.discard(beat.started_at)

    def check(self) -> None:
        mine, theirs = self.changes.by_id.get("n"), self.whole.by_id.get("n")
        unheard = self.changes.unheard(["n"])
        if mine is not None and mine.live and mine.told:
            assert unheard == []
            assert theirs is not None
            start = mine.heartbeat.started_at
            assert start == theirs.heartbeat.started_at or self.missed, "one was silent, and is not known now"
            assert start in self.missed or mine.heartbeat.slices == self.said[start].slices
        elif theirs is not None and theirs.live:
            assert self.missed
            set_back = mine is not None and mine.heartbeat.started_at > theirs.heartbeat.started_at
            assert unheard == ["n"] or set_back, "it may hold less than the others"


@settings(max_examples=share.examples(300), deadline=None)
@given(st.integers(0, 1 << 40), st.sampled_from((0.0, 0.05, 0.4)))
def test_a_leader_knows_what_whole_heartbeats_would_tell(seed: int, losses: float) -> None:
    """A node that is started again, later or on a clock that was set back, and stands still now and then;
    leaders follow one another. What is lost, is lost to both, and its sender does not know."""
    chance = Random(seed)
    writer, started, term, now = HeartbeatWriter(), 1_000_000, 1, 1_000_000
    leader, said = Leader(), list[SliceStatus]()
    silent_until = 0
    for _ in range(160):
        for _ in range(0, BEAT_MS, TICK_MS):
            now += TICK_MS
            leader.tick(now)
        if chance.random() < 0.03:
            writer, started = (
                HeartbeatWriter(),
                started + chance.choice((-4_000, 3_000, 5_000)) + chance.randrange(999),
            )
        if chance.random() < 0.02:
            leader, term = Leader(), term + 1
            leader.tick(now)
            if chance.random() < 0.5:  # it may begin to read later than nodes hear of it
                leader.missed.add(started)
                writer.write(_beat(started, now, said), term, CHANGES)
        if chance.random() < 0.03:
            silent_until = now + chance.randrange(2 * TIMEOUT_MS)
        if now >= silent_until:
            said = slices(chance, said)
            beat = _beat(started, now, said)
            message = writer.write(beat, term, CHANGES)
            if chance.random() < losses:
                leader.missed.add(started)
            else:
                leader.hear(encode(message), beat, now)
        leader.check()
    for _ in range(0, WHOLE_MS + TIMEOUT_MS + BEAT_MS, BEAT_MS):
        now += BEAT_MS
        leader.tick(now)
        beat = _beat(started, now, said)
        leader.hear(encode(writer.write(beat, term, CHANGES)), beat, now)
    known = leader.changes.by_id["n"]
    assert known.live
    assert (known.heartbeat.started_at, known.heartbeat.slices) == (started, said)


def _beat(started: int, now: int, said: list[SliceStatus]) -> NodeHeartbeat:
    return NodeHeartbeat("n", "u", started, now, said, 1, 2, 3, protocol=CHANGES)
