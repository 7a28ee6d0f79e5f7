"""Builds of new layouts that begin with the slices of the old ones (`streaming.backfill.seed`): what nodes
are asked, and what is sent. Nodes answer as real ones do, page by page; between two everything else goes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from indexer.digests import answering
from keytide.catalog.catalog import Catalog
from keytide.catalog.records import IndexRecord
from keytide.http.node_protocol import NoAnswerError
from keytide.model.timestamp import Timestamp
from keytide.wire import digests
from keytide.wire.messages import Message, encode
from streaming.backfill.seed import Sending, pin_of
from streaming.core.micro_batches import SettledBatch
from streaming.core.runs import ChunkHeader
from streaming.core.seeding import in_order, page_of
from streaming.slices.entries import SliceEntries
from tests.simulation.projectors import TOPICS

if TYPE_CHECKING:
    from tests.simulation.world import World

LEASE_MS = 2_000
CHUNK_BYTES = 60
"""An entry or two."""


class SimNodes:
    """Asks nodes (`keytide.http.blocking_nodes.BlockingNodeClient`)."""

    def __init__(self, world: World) -> None:
        self._world = world

    def ask(self, url: str, body: bytes, secret: str) -> bytes:
        node = self._world.nodes[url.removeprefix("http://").split("/")[0]]
        if self._world.clock.now < node.silent_until:
            raise NoAnswerError("it stands still")
        ask: Any = digests.ask_decoder.decode(body)
        if isinstance(ask, digests.EntriesAsk):
            ask = digests.EntriesAsk(*where(ask), ask.after, 1, ask.bytes_limit)
        return digests.encode(answering.answer(node.node, ask, node.now))

    def close(self) -> None:
        """There is nothing to close."""


def where(ask: digests.EntriesAsk) -> tuple[str, int, int, int]:
    return ask.index, ask.slice, ask.number, ask.incarnation


class Recorder:
    """Keeps what is sent to slices, as records (`streaming.backfill.seed.Sender`)."""

    def __init__(self, attempt: str, topic: str) -> None:
        self.attempt = attempt
        self.messages: list[tuple[str, int, bytes]] = []
        self._topic = topic

    def send(self, target: int, message: Message) -> None:
        self.messages.append((self._topic, target, encode(message)))


async def read(
    world: World,
    catalog: Callable[[], Catalog],
    build: tuple[str, str, str],
    index: IndexRecord,
    seed: str,
    goal: Timestamp,
    turn: Callable[[], Awaitable[None]],
) -> tuple[SettledBatch, Timestamp, list[tuple[str, int, bytes]]]:
    """Read the slices of a layout; what came of it, the timestamp of the snapshot, and what to send.

    Args:
        build: its id, the run, the attempt.
        turn: has everything else go on.
    """
    name, run, attempt = build
    nodes: Any = SimNodes(world)
    slices = SliceEntries(catalog, [seed], nodes, LEASE_MS)
    record = catalog().build(name)
    assert record is not None
    pin = pin_of(slices, goal, record.incarnation)

    def header(number: int, attempt: str) -> ChunkHeader:
        return ChunkHeader(name, index.id, number, run, 0, attempt)

    recorder = Recorder(attempt, TOPICS.backfill(index.id, name))
    sending = Sending(index, recorder, header, CHUNK_BYTES)
    try:
        await turn()
        rows = 0
        for page in in_order([map(page_of, slices.entries(pin, place)) for place in sorted(pin.nodes)]):
            rows += len(page.ids)
            sending.add(page)
            await turn()
        sending.end_entries()
        for place in sorted(pin.nodes):
            for lines in slices.skips(pin, place):
                sending.skip(lines)
                await turn()
    finally:
        slices.release(pin)
    world.seen["seeded"] += 1
    return sending.settled(rows), pin.timestamp, recorder.messages
