"""Whatever is lost, comes twice or begins again, whoever leads: who follows the heartbeats of a node has just
what it said, or leaves them alone; and has it soon."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keytide.model.protocol import CHANGES
from keytide.model.timestamp import Place, Timestamp
from keytide.wire.heartbeats import WHOLE_EACH, HeartbeatWriter, follow
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
