"""Planted faults are seen; the quick messages of the simulation are those of the real pipeline."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from msgspec.structs import replace

from indexer.store.fold.worker import FoldWorker
from indexer.store.interface import Applied, StoreDamagedError
from indexer.store.lmdb.bulk import NotInOrderError
from keytide.catalog.catalog import Catalog
from keytide.catalog.records import IndexRecord, KeyspaceRecord, record_key
from keytide.wire.messages import SegmentBatch, encode
from projector.core.pipeline import Columns, MessageLimits, Pipeline, batches_of
from projector.progress.events import Key
from tests import share
from tests.memory_store.store import MemorySliceStore
from tests.simulation.all_mutants import MUTANTS
from tests.simulation.chance import Chance, Plan
from tests.simulation.mutants_unit import UNIT_MUTANTS, UnitMutant
from tests.simulation.packing import segments_of
from tests.simulation.planting import Mutant, Patches, planted
from tests.simulation.running import killer, quietly
from tests.simulation.shrink import shrink
from tests.simulation.source import KEYSPACE, PARTITIONS, Layout, Source, Version, layout, shaped
from tests.store_kit import lmdb_store

SEEN = (AssertionError, pytest.fail.Exception, NotInOrderError, StoreDamagedError)
"""How a test fails, or the product itself finds that something is wrong."""
SETTINGS = "_hypothesis_internal_use_settings"
"""Where Hypothesis keeps those of a test."""
MOST_EXAMPLES = 5_000
BUDGET = int(os.environ.get("KEYTIDE_MUTANT_SEEDS", "400"))


@pytest.mark.parametrize("mutant", share.planted(MUTANTS), ids=lambda mutant: mutant.name)
def test_planted_faults_are_seen(mutant: Mutant) -> None:
    """By the first steps of a history that is known to see it (those of the whole of it, in `make soak`),
    or by another one: that takes long, and the table names the new one."""
    with quietly():
        assert killer(mutant, BUDGET, whole=share.EVERYTHING) is not None, (
            f"{mutant.name} survived {BUDGET} seeds"
        )


@pytest.mark.parametrize("mutant", share.planted(UNIT_MUTANTS), ids=lambda mutant: mutant.name)
def test_what_no_history_shows_is_seen_by_the_named_test(
    mutant: UnitMutant, tmp_path: Path, folds: FoldWorker
) -> None:
    def run(place: str, *, on_disk: bool) -> None:
        (folder := tmp_path / f"{place}-{on_disk}").mkdir()
        store = lmdb_store(folder / "slice", folds) if on_disk else MemorySliceStore(Applied())
        with closing(store), pytest.MonkeyPatch.context() as patch:
            mutant.run(tmp_path=folder, folds=folds, store=store, monkeypatch=patch)

    for on_disk in (False, True) if "store" in mutant.wanted() else (False,):
        run("as it is", on_disk=on_disk)
        with planted(mutant.plant), until_it_fails(mutant), pytest.raises(SEEN):
            run("planted", on_disk=on_disk)


@contextmanager
def until_it_fails(mutant: UnitMutant) -> Iterator[None]:
    """A property is tried until an example fails, or a great many have not, and nobody looks for its smallest
    form. Of as few examples as it has otherwise (`share.examples`), one in six times none fails."""
    with pytest.MonkeyPatch.context() as patch:
        if (used := getattr(mutant.test, SETTINGS, None)) is not None:
            more = settings(used, max_examples=MOST_EXAMPLES, phases=[Phase.generate], database=None)
            patch.setattr(mutant.test, SETTINGS, more)
        yield


def test_planting_leaves_nothing_behind() -> None:
    class Old:
        def speak(self) -> str:
            return "old"

    class Heir(Old):
        pass

    patches = Patches()
    patches.put(Heir, "speak", lambda self: "new")
    assert Heir().speak() == "new"
    patches.undo()
    assert Heir().speak() == "old"
    assert "speak" not in vars(Heir)


def test_shrinking_finds_the_steps_that_matter() -> None:
    steps = tuple((name, number) for number, name in enumerate("abcdefghijklmnop"))
    whole = Plan(1, frozenset({"x", "y"}), steps, real_pipeline=True)

    def fails(one: Plan) -> str:
        names = [name for name, _ in one.steps]
        return "Untorn" if "y" in one.faults and "c" in names and "n" in names else ""

    prefix, smallest = shrink(whole, fails)
    assert [name for name, _ in prefix.steps] == list("abcdefghijklmn")
    assert prefix.faults == whole.faults
    assert [name for name, _ in smallest.steps] == ["c", "n"]
    assert smallest.faults == {"y"}
    assert not smallest.real_pipeline


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ranged", [False, True])
@pytest.mark.parametrize("spread", ["no", "one partition", "some more than others"])
def test_quick_messages_are_the_real_ones(seed: int, ranged: bool, spread: str) -> None:
    """Segment for segment, `packing` makes what the real pipeline makes."""
    with shaped(spread=spread == "one partition"):
        _quick_messages_are_the_real_ones(seed, layout(ranged, spread == "some more than others"))


def _quick_messages_are_the_real_ones(seed: int, of: Layout) -> None:
    source, chance, by_id = Source(layout=of), Chance(seed), of.rule.by_id
    for step in range(60):
        source.write(chance, 1_000 + step * seed)
        if step == 30:
            for log in source.logs:
                log.elect()
    catalog = Catalog()
    named = replace(of.definition, name="a")
    index = IndexRecord("a", named, "READY", 1, [["n"]] * of.slices, "b", 0, splits=of.rule.splits)
    for record in (
        KeyspaceRecord(KEYSPACE, source.topic_id, PARTITIONS, 1),
        replace(index, hears_by_id=by_id),
    ):
        catalog.put(record_key(record), record)
    pipeline = Pipeline("p", MessageLimits(1 << 20, 1 << 20))
    for log in source.logs:
        key, at = Key(KEYSPACE, log.partition), 0
        while at < log.end:
            end = min(log.end, at + chance.below(9))
            batches = batches_of(key, at, end, -1, _columns(log.read(at, end)))
            made = pipeline.emit(catalog, KEYSPACE, {1: batches}, 5)
            quick = [segments_of(one, of, by_id) for one in batches]
            for message in made:
                parts = [segments[message.slice] for segments in quick]
                wanted = SegmentBatch("a", message.slice, "p", source.topic_id, 0, 1, parts, 5)
                assert message.value == encode(wanted)
            at = max(end, at)
            if not made:
                break


def _columns(versions: list[Version]) -> list[Columns]:
    """By leader epoch."""
    runs = [list(run) for _, run in groupby(versions, lambda version: version.epoch)]
    return [
        Columns(
            run[0].epoch,
            [version.offset for version in run],
            [version.id for version in run],
            [version.document for version in run],
            [version.time for version in run],
        )
        for run in runs
    ]
