"""A cluster for the web page to show: the real leader and the real API, told by events what a busy day looks
like."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse

from coordinator.builds.registry import BuildLimits
from coordinator.core.events import (
    BoundWritten,
    BuildPrepared,
    Event,
    Issued,
    Reported,
    SourceSampled,
    Tick,
    TopicSeen,
)
from coordinator.core.instructions import Broadcast, ConfirmBound, ConfirmTopic, Instruction, Note
from coordinator.core.limits import CoreLimits
from coordinator.core.source_status import SourceStatus
from coordinator.http.api import create_app
from coordinator.leader import Leader
from coordinator.process.event_log import EventRing
from coordinator.process.service import CoordinatorService
from coordinator.statements.commands import CommandResult, Commands
from keytide.catalog.catalog import Catalog
from keytide.catalog.records import TermRecord
from keytide.definition.statement import parse_statement
from keytide.model.protocol import SPOKEN
from keytide.model.timestamp import Timestamp
from keytide.process.clock import now_ms
from keytide.settings.settings import Settings, load_settings
from keytide.wire.index_lists import LISTS_PATH, BoundingBox, ListPage, ask_decoder, encoder
from keytide.wire.messages import (
    Acknowledged,
    Activated,
    BuildProgress,
    NodeHeartbeat,
    PartitionProgress,
    Progress,
    SliceStatus,
    StabilityTimestamp,
)

_T = TypeVar("_T")
FLIGHTS = 336_776
NODES = ("node-1", "node-2")


FRAME = """<!doctype html><body style="margin:0">
<iframe src="/" width="WIDTH" height="6000" style="border:0"></iframe>
<script>setInterval(() => {
  const page = document.querySelector("iframe").contentDocument;
  if (page.body.dataset.loaded) document.body.dataset.scroll = page.documentElement.scrollWidth;
}, 100)</script>"""
"""The page in a frame of a given width (a browser's window cannot be as narrow as a telephone), measured."""


class Scene:
    """Stands where the service stands, without Kafka: what the API asks is asked of a leader in memory."""

    def __init__(self, **settings: Any) -> None:
        self.settings: Settings = load_settings(cluster="keytide", **settings)
        self.events = EventRing()
        self.started_at = now_ms()
        self.term = 4
        self.leads = True
        self.number = 800
        self.states = dict.fromkeys(NODES, "LIVE")
        self.lost: set[tuple[str, int]] = set()
        self.end = FLIGHTS
        self.pulsed_at = 0
        self.ahead_ms = 0
        """How far the coordinator's clock is ahead of the browser's when it is asked."""
        self.running: dict[str, int] = {}
        self.node_url = ""
        """Where all nodes are, when somebody answers for them."""
        self.boxes: dict[str, list[BoundingBox]] = {}
        """By index what its nodes give as a sample."""
        catalog = Catalog()
        catalog.put("term", TermRecord(self.term, "scene", self.started_at))
        limits = BuildLimits(concurrent=9, concurrent_per_node=1)
        self.leader = Leader(catalog, "keytide", self.term, CoreLimits(), limits)

    def ask(self, look: Callable[[Leader, int], _T]) -> Future[_T]:
        future: Future[_T] = Future()
        self.pulse()
        try:
            future.set_result(look(self.leader, now_ms() + self.ahead_ms))
        except Exception as error:  # noqa: BLE001 - belongs to whoever asked
            future.set_exception(error)
        return future

    def change(self, command: Callable[[Commands, int], CommandResult]) -> Future[CommandResult]:
        """What is written is committed at once."""
        future: Future[CommandResult] = Future()
        try:
            answer = command(self.leader.commands, now_ms())
            self.take(answer.instructions)
            future.set_result(answer)
        except Exception as error:  # noqa: BLE001 - belongs to whoever asked
            future.set_exception(error)
        return future

    def sample(self, keyspace: str) -> SourceStatus:
        return self.facts(FLIGHTS)

    def pulse(self) -> None:
        """Time passes: documents come in, nodes and drivers go on (from when somebody first looks)."""
        if now_ms() - self.pulsed_at < 500:
            return
        self.pulsed_at = now_ms()
        self.end += 400
        self.beat(self.end)
        self.progress(self.end)
        for build, documents in self.running.items():
            self.running[build] = min(documents + 4_000, FLIGHTS - 4_000)
            self.driver(build, "RUNNING", self.running[build])

    # --- what happens ---------------------------------------------------------------------------------------

    def take(self, instructions: list[Instruction]) -> None:
        for one in instructions:
            if isinstance(one, Note):
                self.events.add(one, now_ms())
            elif isinstance(one, Broadcast) and isinstance(one.message, StabilityTimestamp):
                self.number += 1
                self.handle(Issued(one.message, self.number, now_ms()))
            elif isinstance(one, ConfirmBound):
                self.handle(BoundWritten(one.keyspace, one.bound, now_ms()))
            elif isinstance(one, ConfirmTopic):
                self.handle(TopicSeen(one.keyspace, one.ask, "t1", "", now_ms()))

    def handle(self, event: Event) -> None:
        self.take(self.leader.handle(event))

    def facts(self, end: int) -> SourceStatus:
        ends = dict.fromkeys(range(4), end // 4)
        return SourceStatus("flights", "t1", dict.fromkeys(range(4), 0), ends, ends, False, 0, 0, now_ms())

    def sql(self, text: str) -> None:
        self.take(
            self.leader.commands.execute(parse_statement(text), self.facts(FLIGHTS), now_ms()).instructions
        )

    def beat(self, reached: int, number: int | None = None, nodes: tuple[str, ...] = NODES) -> None:
        """Heartbeats: every slice has applied `reached` documents and holds the snapshot `number`."""
        held = self.number if number is None else number
        position = Timestamp.of(dict.fromkeys(range(4), reached // 4))
        for node in nodes:
            slices = [
                SliceStatus(
                    i.id,
                    n,
                    "LOST" if (i.name, n) in self.lost else self.states[node],
                    "",
                    position,
                    held,
                    0,
                    42_097,
                    5_900_000,
                    1,
                    12,
                    0,
                    0,
                    0,
                )
                for i in self.leader.dictionary.catalog.indexes()
                for n, placed in enumerate(i.placement)
                if node in placed
            ]
            nowhere = f"http://127.0.0.1:280{NODES.index(node) + 93}"  # not 80..: a cluster may run here
            url = self.node_url or nowhere
            message = NodeHeartbeat(node, url, 1, now_ms(), slices, 214 << 20, 51 << 30, 0, protocol=SPOKEN)
            self.handle(Reported(message, now_ms()))

    def progress(self, acked: int) -> None:
        """The projector has everything below `acked`, and has activated what there is; all slices hold it."""
        keyspace = self.leader.dictionary.catalog.keyspace("flights")
        assert keyspace is not None
        partitions = [
            PartitionProgress(number, acked // 4, 0, acked // 4, now_ms() - 21, keyspace.version)
            for number in range(4)
        ]
        for number in range(4):
            activated = Activated("flights", "p1", number, keyspace.version, acked // 4, 0)
            self.handle(Reported(activated, now_ms()))
        self.handle(Reported(Progress("flights", "p1", "t1", 0, partitions, acked, {}, SPOKEN), now_ms()))
        self.handle(Tick(now_ms() + 250))
        for node in NODES:
            slices = [
                (i.id, n)
                for i in self.leader.dictionary.catalog.indexes()
                for n, placed in enumerate(i.placement)
                if node in placed
            ]
            self.handle(Reported(Acknowledged(node, "flights", 0, self.number, slices), now_ms() + 250))

    def build(self, name: str, driver: str, documents: int) -> str:
        """Start the build of an index that was just created, and let its driver come so far."""
        index = self.leader.dictionary.index_named(name)
        build = str(index.build)
        self.handle(Tick(now_ms()))
        self.handle(BuildPrepared(build, self.facts(FLIGHTS), now_ms()))
        self.progress(FLIGHTS)
        self.driver(build, driver, documents)
        return build

    def ready(self, name: str, clauses: str) -> None:
        """An index that is defined, and built."""
        self.sql(f"CREATE INDEX {name} ON flights {clauses}")
        build = self.build(name, "PASSED", FLIGHTS)
        self.handle(SourceSampled(self.facts(FLIGHTS), build, now_ms()))
        self.progress(FLIGHTS)

    def driver(self, build: str, state: str, documents: int) -> None:
        reached = Timestamp.of(dict.fromkeys(range(4), documents // 4))
        message = BuildProgress(
            build,
            "r1",
            state,
            1,
            reached,
            Timestamp(),
            documents,
            {},
            "",
            now_ms(),
            now_ms(),
            protocol=SPOKEN,
        )
        self.handle(Reported(message, now_ms()))


def busy_day(**settings: Any) -> Scene:
    """Two indexes READY, one of them without a slice, the other one to get other slices; one being built, one
    waiting for its turn, one FAILED; two nodes."""
    scene = Scene(**settings)
    for node in NODES:
        scene.beat(0, -1, (node,))
    for name, key in (("by_destination", "dest, arr_time DESC"), ("late_arrivals", "arr_delay")):
        scene.ready(name, f"({key}) WITH (slices=8)")
    scene.sql("CREATE INDEX by_tail ON flights (tailnum) WITH (slices=4)")
    failed = scene.build("by_tail", "RUNNING", 40_000)
    scene.handle(SourceSampled(SourceStatus("flights", "", {}, {}, {}, False, 0, 0, now_ms()), "", now_ms()))
    assert scene.leader.builds.registry.get(failed).state == "FAILED"
    scene.handle(SourceSampled(scene.facts(FLIGHTS), "", now_ms()))
    scene.sql("CREATE INDEX by_carrier ON flights (carrier, flight) WITH (slices=8)")
    scene.running[scene.build("by_carrier", "RUNNING", 120_000)] = 120_000
    scene.sql("CREATE INDEX by_origin ON flights (origin) WITH (slices=2)")
    scene.sql("ALTER INDEX by_destination SET (slices=12)")
    scene.handle(Tick(now_ms()))
    scene.lost.add(("late_arrivals", 3))
    scene.beat(FLIGHTS)
    return scene


def day_of_maps() -> Scene:
    """An index of geometries on the globe, one of those in a plane, and a btree; all READY, on two nodes."""
    scene = Scene()
    for node in NODES:
        scene.beat(0, -1, (node,))
    scene.ready("by_place", "USING spatial (place) WITH (slices=4)")
    scene.ready(
        "by_seat",
        "USING spatial (seat) PARTITION BY RANGE(cell) SPLIT AT (4611686018427387904) WITH (srid=0)",
    )
    scene.ready("by_tail", "(tailnum) PARTITION BY HASH(tailnum) SUBPARTITION BY HASH(id) SLICES (3, 1)")
    scene.beat(FLIGHTS)
    return scene


@contextmanager
def served(scene: Scene) -> Iterator[str]:
    """The API and the page over a scene, and who answers for its nodes, on free ports; its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    begun = threading.Event()
    app = create_app(cast(CoordinatorService, scene), url, begun.set)

    @app.get("/frame/{width}")
    async def frame(width: int) -> HTMLResponse:
        return HTMLResponse(FRAME.replace("WIDTH", str(width)))

    with _nodes(scene), _running(app, listener):
        assert begun.wait(30)
        yield url


@contextmanager
def _nodes(scene: Scene) -> Iterator[None]:
    """Who answers for the nodes, if any box is to be given."""
    if not scene.boxes:
        yield
        return
    listener, app = socket.create_server(("127.0.0.1", 0)), FastAPI()

    @app.post(LISTS_PATH)
    async def lists(request: Request) -> Response:
        ask = ask_decoder.decode(await request.body())
        name = next(one.name for one in scene.leader.dictionary.catalog.listed() if one.id == ask.index)
        return Response(encoder.encode(ListPage(boxes=scene.boxes.get(name, [])[: ask.limit])))

    scene.node_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with _running(app, listener):
        yield


@contextmanager
def _running(app: FastAPI, listener: socket.socket) -> Iterator[None]:
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()
