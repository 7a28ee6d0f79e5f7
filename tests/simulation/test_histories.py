"""Seeded histories of the real cores with faults: all invariants hold, and everything drains."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from indexer.hosting.slice_runner import SliceKey
from indexer.store.fold.fold import FoldJob, FoldOutcome, run_fold
from indexer.store.interface import Applied
from indexer.store.lmdb.store import LmdbSliceStore
from indexer.store.settings import StoreSettings
from keytide.kafka.broker_watch import BrokerWatch
from keytide.structure import StructureName
from tests import share
from tests.simulation.chance import BROKERS_LOST, EVERY, FAULTS, RETENTION, Plan, altering, plan, retaining
from tests.simulation.regressions import REGRESSIONS
from tests.simulation.running import histories, quietly, run_or_tell
from tests.simulation.scheduler import SimLoop
from tests.simulation.source import shaped
from tests.simulation.world import FailedError, run
from tests.structure_kit import digests_of

SEEDS = range(int(given)) if (given := os.environ.get("KEYTIDE_SEEDS")) else share.seeds(2000)
GROUPS = 20 if len(SEEDS) >= 2000 else 6
_FIRST_COUNTED = 1_000_000
RETAINED = (37, 40)
"""Seeds in which retention comes before a build, before a driver and before the coordinator knows."""
ALTERED = (2, 5)
"""Seeds in which an index is altered whose build has found splits."""


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_history_keeps_the_invariants_and_drains(group: int) -> None:
    seeds = SEEDS[group::GROUPS]
    assert histories(seeds).histories == len(seeds)


@pytest.mark.parametrize("group", range(2))
def test_every_history_of_hash_indexes_does(group: int) -> None:
    """Nothing but what structures say is another: the same histories, with entries by digests."""
    seeds = SEEDS[group : len(SEEDS) // 10 : 2]
    with shaped("hash"):
        assert histories(seeds).histories == len(seeds)


@pytest.mark.parametrize("bits", [0, 2])
def test_every_history_does_where_digests_collide(bits: int) -> None:
    seeds = SEEDS[bits : len(SEEDS) // 10 : 4]
    with digests_of(bits), shaped("hash"):
        assert histories(seeds).histories == len(seeds)


def _lossy(seed: int) -> Plan:
    one = plan(seed)
    return one._replace(faults=one.faults | {BROKERS_LOST})


def test_every_history_does_where_projectors_lose_their_brokers() -> None:
    seeds = SEEDS[: len(SEEDS) // 10]
    with quietly():
        lost = sum(run_or_tell(_lossy(seed)).seen["brokers lost"] for seed in seeds)
    assert lost > len(seeds)


def test_every_history_does_where_the_source_keeps_records_for_a_time() -> None:
    """R29: an index has what there was for its build to read, and a build that has missed something fails."""
    seen: Counter[str] = Counter()
    with quietly():
        for seed in sorted({*SEEDS[: len(SEEDS) // 10], *RETAINED}):
            world = run_or_tell(retaining(plan(seed)))
            seen += world.seen
            seen["missed"] += len(world.missed)
    reached = (RETENTION, "builds too late", "read too late", "later builds", "missed")
    assert all(seen[what] for what in reached), seen


def test_clients_without_brokers_that_are_not_replaced_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokerWatch, "is_lost", lambda self, client: False)

    def runs() -> None:
        for seed in range(20):
            run(_lossy(seed))

    with quietly(), pytest.raises(FailedError, match="Stuck"):
        runs()


@pytest.mark.parametrize("structure", ["btree", "hash"])
def test_every_history_does_where_a_partition_is_several_slices(structure: StructureName) -> None:
    seeds = SEEDS[1 + (structure == "hash") : len(SEEDS) // 10 : 4]
    with shaped(structure, spread=True):
        assert histories(seeds).histories == len(seeds)


@pytest.mark.parametrize(("structure", "ranged"), [("btree", False), ("btree", True), ("spatial", True)])
def test_every_history_does_where_some_partitions_are_more_slices_than_others(
    structure: StructureName, ranged: bool
) -> None:
    """By HASH and by RANGE, of one slice and of two: slices that hear of all documents, and of some."""
    first = 2 * (structure == "spatial") + ranged
    with shaped(structure), quietly():
        for seed in SEEDS[first : len(SEEDS) // 10 : 6]:
            run_or_tell(plan(seed)._replace(spread=True, ranged=ranged))


@pytest.mark.parametrize("structure", ["btree", "spatial"])
def test_every_history_does_where_indexes_are_altered(structure: StructureName) -> None:
    """Mostly while their builds wait, look for splits or are paused: they get other splits, and other slices;
    and when they are READY."""
    seeds = (
        {*SEEDS[: len(SEEDS) // 10], *ALTERED} if structure == "btree" else SEEDS[3 : len(SEEDS) // 10 : 8]
    )
    seen: Counter[str] = Counter()
    with shaped(structure), quietly():
        for seed in sorted(seeds):
            seen += run_or_tell(altering(plan(seed))).seen
    reached = ("QUEUED", "paused", "sampling", "sampled", "READY")
    assert structure == "spatial" or all(seen[f"altered {when}"] for when in reached), seen


@pytest.mark.parametrize("group", range(2))
def test_every_history_of_spatial_indexes_does(group: int) -> None:
    """Documents have geometries, of one cell and of several, by document or by cell; each is shown once."""
    seeds = SEEDS[2 + group : len(SEEDS) // 10 : 4]
    with shaped("spatial"):
        assert histories(seeds).histories == len(seeds)


def test_what_failed_once_fails_no_more() -> None:
    with quietly():
        for _, one in REGRESSIONS:
            run_or_tell(one)


def test_histories_reach_what_they_are_for() -> None:
    """Without this, a world in which nothing happens would pass. As many as it takes, of 60."""
    seen: Counter[str] = Counter()
    with quietly():
        for seed in range(_FIRST_COUNTED, _FIRST_COUNTED + 60):
            world = run(plan(seed, EVERY if seed % 2 else FAULTS))
            seen["commits"] += world.checkers.commits
            seen["scans"] += world.checkers.scans
            seen["heartbeats followed"] += world.checkers.followed
            seen["restarts"] += sum(node.lives for node in world.nodes.values()) - len(world.nodes)
            seen += world.seen
            if not share.EVERYTHING and all(seen[what] for what in REACHED):
                break
    lacking = [what for what in REACHED if not seen[what]]
    assert not lacking, (lacking, seen)


REACHED = (
    "commits",
    "scans",
    "heartbeats followed",
    "restarts",
    "unnumbered",
    "gaps",
    "parts",
    "full disk",
    "batches",
    "switches",
    "passed over",
    "published",
    "pages",
    "rewound",
    "fenced",
    "suspended",
    "index-ready",
    "index-dropped",
    "build-cancelled",
    "build-failed",
    "build-resumed",
    "driver-restarted",
    "timestamp-not-sent",
    "snapshot gone",
    "truncated",
    "recreated",
    "rolled-back",
    "expired",
    "tips",
    "tip not held",
    "snapshot not held",
    "scan waited",
    "scan without answer",
    "counts",
    "held",
    "timestamps-held",
    "stepped back",
    "build-restarted",
    "slice-lost",
    "slices-rebuilt",
    "unique-violated",
    "repaired",
    "table",
    "killed amid",
    "clock jumped",
    "full disk: fold",
    "full disk: new store",
    "full disk: chunk",
    "out of range",
    "queue full",
    "old leader",
)


def test_a_seed_is_a_history() -> None:
    """The same seed gives the same trace in processes that hash differently, and look for garbage at other
    moments: this one, and another."""
    script = (
        "import gc, logging; logging.disable(50); gc.set_threshold(50)\n"
        "from tests.simulation.chance import plan\n"
        "from tests.simulation.world import run\n"
        "print([run(plan(seed)).clock.digest() for seed in (3, 4, 5, 13, 19)])"
    )
    other = "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"
    told = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": other},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    with quietly():
        assert told.strip() == str([run(plan(seed)).clock.digest() for seed in (3, 4, 5, 13, 19)])


def test_a_history_does_not_depend_on_the_order_of_a_set_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """On seed 19 several requests between nodes end at once, and fail in several ways."""
    with quietly():
        forwards = [repr(line) for line in run(plan(19)).clock.log]
        monkeypatch.setattr(SimLoop, "order", -1)
        assert [repr(line) for line in run(plan(19)).clock.log] == forwards


class _Ticket:
    def __init__(self, outcome: FoldOutcome) -> None:
        self._outcome = outcome

    def outcome(self, wait_s: float = 0.0) -> FoldOutcome | None:
        return self._outcome

    def cancel(self) -> None:
        pass  # it has ended


class _Inline:
    """Folds at once."""

    def submit(self, job: FoldJob, prepare: Callable[[], None]) -> _Ticket:
        prepare()
        return _Ticket(run_fold(job))


class _OnDisk(LmdbSliceStore):
    """The real store; a crash is a second opening of its folder."""

    def __init__(self, folder: Path, initial: Applied) -> None:
        self._place = (folder, initial)
        settings = StoreSettings(
            base_map_bytes=1 << 26,
            delta_map_bytes=1 << 26,
            fold_age_ms=60,
            reserve_bytes=0,
            fsync=False,
            check_mirror_s=0,
        )
        super().__init__(folder, initial, settings, _Inline())

    def reopened(self) -> _OnDisk:
        self.close()
        return _OnDisk(*self._place)


@pytest.mark.parametrize("seed", range(4))
def test_the_real_store_does_the_same(seed: int, tmp_path: Path) -> None:
    made = 0

    def new_store(node: str, key: SliceKey, initial: Applied) -> _OnDisk:
        nonlocal made
        made += 1
        return _OnDisk(tmp_path / f"{node}-{key[0]}-{key[1]}-{made}", initial)

    one: Plan = plan(seed, FAULTS if seed % 2 else None)
    with quietly():
        world = run(one._replace(steps=one.steps[:120]), new_store)
    assert world.checkers.commits > 0
    for node in world.nodes.values():
        node.hosting.close()
