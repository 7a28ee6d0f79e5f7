"""What a failed history tells: its seed and faults, and the story of each document that is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from indexer.store.interface import UNNUMBERED
from keytide.errors import KeytideError
from keytide.wire.messages import Part, SegmentBatch, decode
from tests.simulation.checkers import BrokenError
from tests.simulation.clock import BEGIN
from tests.simulation.replaying import command_of
from tests.simulation.source import Version

if TYPE_CHECKING:
    from tests.simulation.clock import Line
    from tests.simulation.world import World

_DOCUMENTS = 3
_LINES = 60
_PLAIN = frozenset({"write", "land", "commit", "scan", "tip", "place", "stamp", "published"})
"""Lines of which there are many: only the last are told."""
_PHASES = {"step": "step", "healed": "heal: no more faults, no more writes", "restart": "all nodes restart"}


def story(world: World, error: BaseException) -> str:
    """Everything that helps to understand a failure: what is wrong and when, the line that runs it again, the
    way of each document that is wrong, and what happened, step by step, in ms from the beginning."""
    plan = world.plan
    parts = [
        f"seed {plan.seed}, {_phase(world)}: {type(error).__name__} {error}",
        f"run it again: {command_of(plan)}",
        f"faults: {', '.join(sorted(plan.faults)) or 'none'}; {len(plan.steps)} steps",
    ]
    ids = error.ids if isinstance(error, BrokenError) else []
    for docid in ids[:_DOCUMENTS]:
        parts += ["", f"--- {docid.decode()}", *_of_document(world, docid)]
    parts += ["", "--- what happened", *_by_step(line for line in world.clock.log if line[1] not in _PLAIN)]
    parts += ["", "--- the end", *_by_step(world.clock.log[-_LINES:])]
    return "\n".join(parts)


def _phase(world: World) -> str:
    """In which step, or after all of them."""
    last = next((line for line in reversed(world.clock.log) if line[1] in _PHASES), None)
    return "before the first step" if last is None else _title(last)


def _title(line: Line) -> str:
    if line[1] == "step":
        return f"step {line[2]}, {line[3]}"
    return _PHASES[str(line[1])]


def _by_step(lines: Iterable[Line]) -> list[str]:
    """Lines below the steps that they belong to; steps that have none are left out."""
    told: list[str] = []
    title = ""
    for line in lines:
        if line[1] in _PHASES:
            title = _title(line)
            continue
        if title:
            told.append(title)
            title = ""
        told.append(f"  {_time(line)} {_text(line)}")
    return [*told, title] if title else told


def _time(line: Line) -> str:
    return f"{line[0] - BEGIN:+6d} ms" if isinstance(line[0], int) else str(line[0])


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
                    lines.append(f"{_time(line)} written: {version}")
            case "land":
                lines += _segments(line, places)
            case "commit":
                lines += _commit(line, places, reached)
    return lines


def _segments(line: Line, places: set[tuple[int, int]]) -> list[str]:
    _, _, topic, number, position, data = line
    place = f"{_time(line)} {topic}[{number}] {position}"
    try:
        message = decode(data) if isinstance(data, bytes) else None
    except KeytideError:
        return [f"{place}: not readable"]
    if isinstance(message, Part):
        return [f"{place}: part {message.part} of {message.sender} {message.number}"]
    if not isinstance(message, SegmentBatch):
        return []
    return [
        f"{place}: {message.sender} version {message.version} incarnation "
        f"{message.incarnation}, partition {one.partition} [{one.start}, {one.end}) epoch {one.epoch}"
        for one in message.segments
        if any(p == one.partition and one.start <= offset < one.end for p, offset in places)
    ]


def _commit(line: Line, places: set[tuple[int, int]], reached: dict[object, dict[int, int]]) -> list[str]:
    _, _, name, number, incarnation, offsets, batch = line
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
    what = f"commits {number} ({incarnation}, batch {batch}) at {offsets}"
    return [f"{_time(line)} {name} {what}: passes {passed}"]


def _text(line: Line) -> str:
    """A line of the trace in words."""
    match line[1:]:
        case ("write", version):
            return f"written: {version}"
        case ("land", topic, number, position, bytes(data)):
            return f"{topic}[{number}] {position}: {len(data)} bytes from a projector"
        case ("commit", name, number, incarnation, offsets, batch):
            what = "without a number" if number == UNNUMBERED else f"number {number}"
            which = f" after micro-batch {batch}" if isinstance(batch, int) and batch >= 0 else ""
            return f"{name} commits {what} of incarnation {incarnation} at {offsets}{which}"
        case ("stamp", number, term, incarnation, offsets):
            return f"the leader of term {term} issues number {number} of incarnation {incarnation}: {offsets}"
        case ("published", term, incarnation, numbers):
            return f"the leader of term {term} publishes {numbers} of incarnation {incarnation}"
        case ("place", sender, partition, offset, version):
            return f"{sender} commits partition {partition} at {offset}, version {version}"
        case ("scan", name, number, incarnation, offsets, rows):
            return f"a scan of {name} reads {rows} rows at number {number} ({incarnation}), {offsets}"
        case ("back", name, before, after, done):
            return f"{name} steps back from {before} to {after}" + ("" if done else ", not far enough")
        case ("dictionary", term, fate, keys):
            return f"the leader of term {term} {fate} {keys}"
        case ("event", kind, _, text):
            return f"{kind}: {text}"
        case ("fault", fault):
            return f"fault: {fault}"
        case ("term", term):
            return f"a coordinator begins term {term}"
    return " ".join(str(one) if not isinstance(one, bytes) else f"{len(one)} bytes" for one in line[1:])
