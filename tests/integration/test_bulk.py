"""The bulk path on the real parts: what a kill at 90 percent costs (acceptance 10), slices that are filled by
appending (acceptance 11, as counts; the ratio is `python -m benchmarks bulk`).

Nothing here is timed: what was done again is counted, by the chunks that each start of the driver sent and by
the loads that each slice tells of in its node's log.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kafka import KafkaProducer

from deploy.kafka import EmbeddedKafka
from keytide.wire.messages import PutChunk, RemovalChunk
from keytide.wire.parts import Assembler
from tests.integration.conftest import Worlds
from tests.integration.test_backfill import BUILD, INDEXES, Build, Source, changes, compare
from tests.integration.world import World

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(900)]

BATCHES = 10
DOCUMENTS = 10_000
SLICES = 4


def test_10_a_driver_killed_at_90_percent_does_one_micro_batch_again(
    kafka: EmbeddedKafka, topic: Callable[..., str], tmp_path: Path
) -> None:
    """Kill -9 in the last of ten micro-batches, when all its chunks are sent and none of its ends: the next
    start sends chunks of that one and of no other."""
    source = Source(kafka.bootstrap, topic(3, "source"))
    source.write(changes(1, 5_000))
    per_batch = -(-sum(source.ends().values()) // BATCHES)
    killed = tmp_path / "killed"
    build = Build(
        kafka,
        source,
        tmp_path,
        {
            "KEYTIDE_BUILD__BATCH_DOCUMENTS": str(per_batch),
            "KEYTIDE_BUILD__LOCAL_DOCUMENTS": "0",
            "KEYTIDE_SYNC_POINT": f"driver-chunks-sent:once={killed}:{BATCHES}",
        },
    )
    build.change(msgspec.structs.replace(build.record, low_watermark=dict.fromkeys(range(3), 0)))
    with build.driver() as process:
        assert build.wait(process) == -9
    assert killed.exists()
    assert build.batches_done() == BATCHES - 1
    with build.driver() as process:
        assert build.wait(process) == 0

    sent = _batches_by_run(build)
    assert len(sent) == 2
    first, second = sorted(sent.values(), key=min)
    assert first == set(range(BATCHES))
    assert second & first == {BATCHES - 1}, "one micro-batch, the one that was not finished, is done again"
    assert second <= {BATCHES - 1, BATCHES}, "Spark may cut the rest in two"
    compare(build, batches=BATCHES)


def _batches_by_run(build: Build) -> dict[str, set[int]]:
    """Start of the driver -> the micro-batches that it sent chunks of."""
    found: dict[str, set[int]] = defaultdict(set)
    for index in INDEXES:
        assemblers: dict[int, Assembler] = defaultdict(Assembler)
        for partition, offset, value in build.records(build.topics.backfill(index, BUILD)):
            fed = assemblers[partition].feed(value, offset)
            if fed is not None and isinstance(fed[0], PutChunk | RemovalChunk):
                found[fed[0].run].add(fed[0].batch)
    return found


def _by_a(document: dict[str, Any], _: str) -> Iterable[list[Any]]:
    yield [document["a"]]


def test_10_a_node_killed_at_90_percent_loads_nothing_twice(worlds: Worlds, tmp_path: Path) -> None:
    """Kill -9 behind the commit of nine tenths of all loads: the node begins where its slices are. Each slice
    tells of each micro-batch once at most; the first of them is appended, and the index is right."""
    killed = tmp_path / "killed"
    settings = {
        "KEYTIDE_BUILD__BATCH_DOCUMENTS": str(DOCUMENTS // BATCHES),
        "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
        "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
        "KEYTIDE_INDEXER__CHECK_MIRROR_S": "30",
        "KEYTIDE_SYNC_POINT": f"load-committed:once={killed}:{SLICES * BATCHES * 9 // 10}",
    }
    with worlds(settings, nodes=1) as world:
        log = world.cluster.data_dir / "logs" / "node-1.log"
        world.make_topic("orders", 3)
        _fill(world)
        world.sql(f"CREATE INDEX by_a ON orders (a) WITH (slices={SLICES}, defer_build=true)")
        done = world.wait_ready(world.build("by_a"))
        assert done["documents_done"] >= DOCUMENTS
        assert killed.exists()
        assert world.check_at_end("by_a", "orders", _by_a) > 0
    told = log.read_text()
    loads = Counter(re.findall(r"slice (\S+)/(\d+) loaded micro-batch (\d+), (\d+) of (\d+) entries", told))
    batches = Counter((slice_, int(batch)) for _, slice_, batch, _, _ in loads.elements())
    assert max(batches.values()) == 1, "no slice loads a micro-batch twice"
    total = {batch for _, batch in batches}
    assert len(total) >= BATCHES
    # The one that was killed between its commit and its line is missing.
    assert SLICES * len(total) - len(batches) <= 1
    for _, _, batch, appended, entries in loads:
        assert int(appended) == (int(entries) if batch == "0" else 0), "the first is appended from end to end"
    assert any(int(entries) > 0 for _, _, batch, _, entries in loads if batch == "0")


def _fill(world: World) -> None:
    producer = KafkaProducer(bootstrap_servers=world.bootstrap, linger_ms=20)
    chance = random.Random(3)
    for number in range(DOCUMENTS):
        value = json.dumps({"a": chance.randrange(1_000), "n": number}).encode()
        producer.send("orders", key=f"o{chance.randrange(8_000)}".encode(), value=value)
    producer.flush()
    producer.close()
