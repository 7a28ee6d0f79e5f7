"""What a failed history tells: its seed and faults, and the story of each document that is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keytide.errors import KeytideError
from keytide.wire.messages import Part, SegmentBatch, decode
from tests.simulation.checkers import BrokenError
from tests.simulation.source import Version

if TYPE_CHECKING:
    from tests.simulation.clock import Line
    from tests.simulation.world import World

_DOCUMENTS = 3
_LINES = 60
_PLAIN = frozenset({"write", "land", "commit", "scan", "place", "stamp", "published"})


def story(world: World, error: BaseException) -> str:
    """Everything that helps to understand a failure."""
    plan = world.plan
    parts = [
        f"seed {plan.seed}: {type(error).__name__} {error}",
        f"faults: {', '.join(sorted(plan.faults)) or 'none'}; {len(plan.steps)} steps",
        f"steps: {' '.join(step for step, _ in plan.steps)}",
    ]
    ids = error.ids if isinstance(error, BrokenError) else []
    for docid in ids[:_DOCUMENTS]:
        parts += ["", f"--- {docid.decode()}", *_of_document(world, docid)]
    parts += ["", "--- what happened", *[_text(line) for line in world.clock.log if line[1] not in _PLAIN]]
    parts += ["", "--- the end", *[_text(line) for line in world.clock.log[-_LINES:]]]
    return "\n".join(parts)


def _of_document(world: World, docid: bytes) -> list[str]:
    """Its versions, the segments that carried them, and the commits that took them in."""
    source = world.kafka.source
    versions = [
        version for log in [*source.lost, *source.logs] for version in log.records if version.id == docid
    ]
    places = {(version.partition, version.offset) for version in versions}
    reached: dict[object, dict[int, int]] = {}
    lines: list[str] = []
    for line in world.clock.log:
        match line[1]:
            case "write":
                version = line[2]
                if isinstance(version, Version) and version.id == docid:
                    lines.append(f"{line[0]} written: {version}")
            case "land":
                lines += _segments(line, places)
            case "commit":
                lines += _commit(line, places, reached)
    return lines


def _segments(line: Line, places: set[tuple[int, int]]) -> list[str]:
    now, _, topic, number, position, data = line
    try:
        message = decode(data) if isinstance(data, bytes) else None
    except KeytideError:
        return [f"{now} {topic}[{number}] {position}: not readable"]
    if isinstance(message, Part):
        return [
            f"{now} {topic}[{number}] {position}: part {message.part} of {message.sender} {message.number}"
        ]
    if not isinstance(message, SegmentBatch):
        return []
    return [
        f"{now} {topic}[{number}] {position}: {message.sender} version {message.version} incarnation "
        f"{message.incarnation}, partition {one.partition} [{one.start}, {one.end}) epoch {one.epoch}"
        for one in message.segments
        if any(p == one.partition and one.start <= offset < one.end for p, offset in places)
    ]


def _commit(line: Line, places: set[tuple[int, int]], reached: dict[object, dict[int, int]]) -> list[str]:
    now, _, name, number, incarnation, offsets, batch = line
    if not isinstance(offsets, dict):
        return []
    before = reached.get(name, {})
    reached[name] = offsets
    passed = [
        (p, offset)
        for p, offset in sorted(places)
        if (offset < offsets.get(p, 0)) != (offset < before.get(p, 0))
    ]
    if not passed:
        return []
    return [f"{now} {name} commits {number} ({incarnation}, batch {batch}) at {offsets}: passes {passed}"]


def _text(line: Line) -> str:
    return " ".join(str(one) if not isinstance(one, bytes) else f"{len(one)} bytes" for one in line)
