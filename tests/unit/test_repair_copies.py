"""Whom a repair waits for, of slices with several copies."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from keytide.catalog.catalog import Catalog
from keytide.errors import RetryableError
from keytide.model.protocol import SPOKEN
from keytide.model.timestamp import Timestamp
from keytide.wire.heartbeats import WHOLE_EACH, HeartbeatWriter
from keytide.wire.messages import NodeHeartbeat, SliceStatus, encode
from streaming.repair import slices as channel
from streaming.repair.slices import SliceChannel, SliceStatuses, lacking
from tests.unit.scan_world import World

PLACEMENT = [["n1", "n2"], ["n3"]]


def status(number: int, position: int = 0, **other: Any) -> SliceStatus:
    made = SliceStatus("i-1", number, "LIVE", "", Timestamp(), 5, 0, 9, 9, 0, 0, position, 0, 0)
    return replace(made, **other)


def done(one: SliceStatus) -> bool:
    return one.queue_position > 10


DONE: dict[str, Any] = {"position": 11}
LATE: dict[str, Any] = {"position": 10}
LOST: dict[str, Any] = {"state": "LOST"}


@pytest.mark.parametrize(
    ("one", "other", "silent", "waited"),
    [
        (DONE, DONE, "", []),
        (DONE, LATE, "", [("n2", 0)]),
        (LATE, LATE, "", [("n1", 0), ("n2", 0)]),
        (DONE, None, "", [("n2", 0)]),
        (DONE, LATE, "n2", []),
        (DONE, None, "n2", []),
        (DONE, LOST, "", []),
        (LATE, LOST, "", [("n1", 0), ("n2", 0)]),
        (LATE, LATE, "n1 n2", [("n1", 0), ("n2", 0)]),
        (DONE, DONE, "n1 n2", []),
    ],
)
def test_a_copy_that_is_lost_or_silent_is_not_waited_for_when_another_is_done(
    one: Any, other: Any, silent: str, waited: list[tuple[str, int]]
) -> None:
    told = {(node, 0): status(0, **says) for node, says in (("n1", one), ("n2", other)) if says is not None}
    told["n3", 1] = status(1, **DONE)
    assert lacking(PLACEMENT, told, done, silent.split()) == waited


def test_a_slice_of_one_copy_is_always_waited_for() -> None:
    told = {("n1", 0): status(0, **DONE), ("n2", 0): status(0, **DONE), ("n3", 1): status(1, **LOST)}
    assert lacking(PLACEMENT, told, done, ["n3"]) == [("n3", 1)]


class Scene:
    """A channel without Kafka, whose nodes say something whenever it listens, and its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = 1_000.0
        self.world = World("CREATE INDEX i ON users (a) WITH (slices=2)", node_count=3)
        self.world.change("i", placement=PLACEMENT)
        self.says: dict[str, list[SliceStatus]] = {}
        self.told: list[str] = []
        self.stop = False
        monkeypatch.setattr("streaming.repair.slices.time.monotonic", lambda: self.clock)
        self.channel = SliceChannel.__new__(SliceChannel)
        self.channel._index = self.world.index("i")
        self.channel._catalog = self._catalog
        self.channel._told, self.channel._heard, self.channel._nodes = {}, {}, {}
        reports: Any = SimpleNamespace(poll=self._poll)
        self.channel._reports = reports

    def _catalog(self) -> Catalog:
        return self.world.catalog

    def _poll(self, _: float) -> list[Any]:
        self.clock += 1
        self.each()
        found = [NodeHeartbeat(node, "", 1, 0, said, 0, 0, 0) for node, said in self.says.items()]
        return [SimpleNamespace(value=lambda one=one: encode(one)) for one in found]

    each: Callable[[], None] = staticmethod(lambda: None)

    def wait(self, limit_s: float = 60) -> SliceStatuses:
        return self.channel.wait("durable", done, limit_s, lambda: self.stop, self.told.append)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene(monkeypatch)
    made.says = {"n1": [status(0, **DONE)], "n2": [status(0, **LATE)], "n3": [status(1, **DONE)]}
    return made


def test_it_says_whom_it_waits_for(scene: Scene) -> None:
    with pytest.raises(RetryableError, match="slice 0 on n2 of i: not durable within 30 s"):
        scene.wait(30)
    assert scene.told == ["slice 0 on n2: not durable yet"]


def test_what_is_quick_is_not_told(scene: Scene) -> None:
    scene.says["n2"] = [status(0, **DONE)]
    assert sorted(scene.wait()) == [("n1", 0), ("n2", 0), ("n3", 1)]
    assert scene.told == []


def test_a_node_that_falls_silent_is_waited_for_no_longer_than_that(scene: Scene) -> None:
    del scene.says["n2"]
    assert sorted(scene.wait()) == [("n1", 0), ("n3", 1)]
    assert channel.SILENT_S <= scene.clock - 1_000 <= channel.SILENT_S + 2
    assert scene.told == ["slice 0 on n2: not durable yet"]


def test_a_copy_that_counts_no_more_is_not_waited_for_and_one_that_does_is(scene: Scene) -> None:
    def change() -> None:
        if scene.clock == 1_005:
            scene.world.change("i", placement=[["n1"], ["n3", "n4"]])
            scene.says["n4"] = [status(1, **LATE)]
        if scene.clock == 1_009:
            scene.says["n4"] = [status(1, **DONE)]

    scene.each = change
    assert ("n4", 1) in scene.wait()
    assert scene.told == ["slice 0 on n2: not durable yet", "slice 1 on n4: not durable yet"]


def test_it_ends_when_it_is_asked_to(scene: Scene) -> None:
    scene.stop = True
    with pytest.raises(RetryableError, match="asked to end"):
        scene.wait()


def test_nodes_that_say_what_has_changed_are_understood_from_the_middle_on(scene: Scene) -> None:
    """Two of them have said all before anybody read, and one beat is lost."""
    writers = {node: HeartbeatWriter() for node in ("n1", "n2", "n3")}

    def poll(_: float) -> list[Any]:
        scene.clock += 0.5
        if scene.clock >= 1_002:
            scene.says["n2"] = [status(0, **DONE)]
        beats = [
            writer.write(NodeHeartbeat(node, "", 1, 0, scene.says[node], 0, 0, 0), 1, SPOKEN)
            for node, writer in writers.items()
        ]
        heard = beats[:2] if scene.clock == 1_003 else beats
        return [SimpleNamespace(value=lambda one=one: encode(one)) for one in heard]

    for node in ("n1", "n2"):
        for _ in range(3):
            writers[node].write(NodeHeartbeat(node, "", 1, 0, scene.says[node], 0, 0, 0), 1, SPOKEN)
    reports: Any = SimpleNamespace(poll=poll)
    scene.channel._reports = reports
    took = []
    for _ in range(3):
        began = scene.clock
        assert sorted(scene.wait(WHOLE_EACH)) == [("n1", 0), ("n2", 0), ("n3", 1)]
        took.append(scene.clock - began)
    assert took == [3.5, 1.5, 0.5], "until all was said, again by who was missed, and then by every heartbeat"


def test_what_a_process_has_said_that_is_gone_counts_no_more(scene: Scene) -> None:
    """n1 was started again, and what it has said first was lost."""
    before, after = HeartbeatWriter(), HeartbeatWriter()
    lost = after.write(NodeHeartbeat("n1", "", 2, 0, [status(0, **LATE)], 0, 0, 0), 1, SPOKEN)
    assert isinstance(lost, NodeHeartbeat)
    heard: list[Any] = [
        before.write(NodeHeartbeat("n1", "", 1, 0, [status(0, **DONE)], 0, 0, 0), 1, SPOKEN),
        after.write(NodeHeartbeat("n1", "", 2, 0, [status(0, **LATE)], 0, 0, 0), 1, SPOKEN),
    ]
    reports: Any = SimpleNamespace(
        poll=lambda _: [SimpleNamespace(value=lambda: encode(heard.pop(0)))] if heard else []
    )
    scene.channel._reports = reports
    scene.channel._listen()
    assert done(scene.channel._told["n1", 0])
    scene.channel._listen()
    assert scene.channel._told == {}
