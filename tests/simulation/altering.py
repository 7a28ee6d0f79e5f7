"""Indexes that get other slices: while their builds wait, look for splits or are paused, between two builds,
and when they are READY, by a new layout."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from keytide.catalog.records import IndexRecord
from keytide.definition.statement import Statement, parse_statement
from keytide.errors import CallerError, RetryableError
from tests.simulation import steering
from tests.simulation.source import CUTS, SPLIT, spatial

if TYPE_CHECKING:
    from tests.simulation.world import World

ACTIONS = ("build", "pause", "pause", "resume", "resume", "resume", "alter", "alter", "alter")
READY_SHARE = 0.1
"""How often an index is altered that is READY: then it is built once more."""
NUMBERS = (2, 2, 3, 3, 4, 1)
WAYS = (
    "SET (slices={n})",
    "SET (partitions={n})",
    "PARTITION BY RANGE(UNNEST(k)) SET (slices={n})",
    "PARTITION BY RANGE(UNNEST(k)) SET (slices={n})",
    "PARTITION BY RANGE(v) SET (slices={n})",
    "PARTITION BY RANGE(v) SET (slices={n})",
    "PARTITION BY RANGE(UNNEST(k)) SUBPARTITION BY HASH(id) SLICES (2, 1)",
    "PARTITION BY RANGE(UNNEST(k)) SUBPARTITION BY HASH(id) SLICES 2 SET (partitions={n})",
    f"PARTITION BY RANGE(UNNEST(k)) SPLIT AT ('b', '{SPLIT}', 'd')",
    f"PARTITION BY RANGE(UNNEST(k)) SPLIT AT ('{SPLIT}') SUBPARTITION BY HASH(id) SLICES (1, 2)",
    "PARTITION BY HASH(UNNEST(k)) SET (slices={n})",
    "PARTITION BY HASH(v) SUBPARTITION BY HASH(id) SLICES (1, 2)",
    "PARTITION BY HASH(id) SET (slices={n})",
    "SPLIT PARTITION {m} AT ('d')",
    "MERGE PARTITIONS 0, 1",
    "PARTITION {m} SET (slices={n})",
)
PLACES = (
    "SET (slices={n})",
    "PARTITION BY RANGE(cell) SET (slices={n})",
    "PARTITION BY RANGE(cell) SUBPARTITION BY HASH(id) SLICES (2, 1)",
    f"PARTITION BY RANGE(cell) SPLIT AT ({CUTS['cell'][0]}) SUBPARTITION BY HASH(id) SLICES (1, 2)",
    "PARTITION BY HASH(id) SET (slices={n})",
    "MERGE PARTITIONS 0, 1",
    "PARTITION {m} SET (slices={n})",
)


def alter(world: World) -> None:
    """Somebody alters an index, or has its build wait, or go on."""
    what = world.chance.pick(ACTIONS)
    match what:
        case "build":
            world.build()
        case "pause":
            steering.order(world, what)
            _alter(world)
        case "resume":
            steering.order(world, what)
        case _:
            _alter(world)


def _alter(world: World) -> None:
    leader, now, chance = world.leader, world.leader.now, world.chance
    catalog = leader.leader.dictionary.catalog
    ready = chance.happens(READY_SHARE)
    indexes = [
        one for one in catalog.indexes() if (one.state == "READY") == ready and catalog.bears_name(one)
    ]
    if not indexes:
        return
    index = chance.pick(indexes)
    text = chance.pick(PLACES if spatial() else WAYS).format(n=chance.pick(NUMBERS), m=chance.below(2))
    facts = world.kafka.source.facts(now)
    when = _when(world, index)
    try:
        leader.ask(leader.leader.commands.execute(_parsed(f"ALTER INDEX {index.name} {text}"), facts, now))
    except (CallerError, RetryableError):
        world.seen["refused"] += 1
        return
    world.note("alter", index.id, when, text)
    world.seen[f"altered {when}"] += 1


def _when(world: World, index: IndexRecord) -> str:
    """What the index does that is altered."""
    builds = world.leader.leader.builds
    build = builds.registry.active(index)
    if build is None:
        return index.state
    if index.id in builds.registry.run(build.id).splits:
        return "sampled"
    if build.paused:
        return "paused"
    return build.phase or build.state


@lru_cache(512)
def _parsed(text: str) -> Statement:
    return parse_statement(text)
