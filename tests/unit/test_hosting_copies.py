"""Copies of slices that are filled from those of other nodes: which, where they lie, what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from indexer.hosting.filling import FillProgress
from indexer.store.interface import Applied, Counts
from indexer.store.lmdb.copying import LmdbSliceFilling
from indexer.store.settings import StoreSettings
from keytide.catalog.copies import CopyRecord, LeavingCopy
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import SliceStatus
from tests.simulation.wire import TOPIC_ID
from tests.unit.test_hosting import KEY, Place

SETTINGS = StoreSettings(base_map_bytes=1 << 26, delta_map_bytes=1 << 26)
STATE = Applied(timestamp=Timestamp.of({0: 7}, TOPIC_ID), queue_position=5, build="b-1")
"""Of the copy that the others are filled from."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    made.index("READY", nodes=("n2", "n2"))
    yield made
    made.hosting.close()
    made.folds.close()
    made.folder.close()


def order(place: Place, id_: str = "c1", source: str = "n2") -> CopyRecord:
    """A copy of the first slice is to be filled here."""
    copy = CopyRecord(id_, *KEY, "n1", source, need=5, incarnation=0, created_at=1)
    place.write(copy)
    place.hosting.reconcile(place.catalog, 0)
    return copy


def fill(place: Place, id_: str = "c1", state: Applied = STATE) -> None:
    """It has come, empty as it was."""
    filling = LmdbSliceFilling(place.filler.begun[id_][1], SETTINGS)
    filling.begin("g")
    filling.finish(state, Counts())
    filling.close()
    place.filler.told[id_] = FillProgress(0, 0, "", True)
    place.hosting.look_after(0)


def count(place: Place, copies: Sequence[str] = ("c1",)) -> None:
    """The copies count, in this order of the nodes."""
    nodes = ["n2", "n1"] if copies else ["n2"]
    record = place.catalog.index("i-1")
    assert record is not None
    for one in place.catalog.copies():
        place.catalog.remove(f"copy/{one.id}")
    named = {0: {"n1": copies[0]}} if copies else {}
    place.write(replace(record, placement=[nodes, ["n2"]], copies=named))
    place.hosting.reconcile(place.catalog, 0)


def told(place: Place) -> tuple[str, str]:
    status: SliceStatus = place.status()
    return status.state, status.copy


def test_a_copy_is_filled_then_follows_its_queue_and_counts(place: Place) -> None:
    copy = order(place)
    folder = place.filler.begun["c1"][1]
    assert place.filler.begun["c1"][0] == copy
    assert (place.hosting.runners, place.exists()) == ({}, False)
    place.filler.told["c1"] = FillProgress(3, 12, "n2 does not answer", False)
    place.hosting.look_after(0)
    status = place.status()
    assert (status.state, status.rows, status.rows_total, status.reason) == (
        "FILLING",
        3,
        12,
        "n2 does not answer",
    )
    assert status.copy == "c1"
    fill(place)
    assert told(place) == ("CATCHUP", "c1")
    assert place.reading.places == {KEY: ("mutations", 5)}
    assert (place.exists(), folder.exists(), place.filler.begun) == (True, False, {})
    runner = place.hosting.runners[KEY]
    count(place)
    assert place.hosting.runners[KEY] is runner, "it goes on as it is"
    assert told(place) == ("CATCHUP", "c1")


def test_a_restart_fills_on(place: Place) -> None:
    order(place)
    folder = place.filler.begun["c1"][1]
    (folder / "part").touch()
    place.restart()
    assert place.filler.begun["c1"][1] == folder
    assert (folder / "part").exists()
    fill(place)
    place.restart()
    assert told(place) == ("CATCHUP", "c1"), "it is not filled again"
    assert place.filler.begun == {}


def test_a_copy_that_was_whole_when_its_node_was_killed_is_taken(place: Place) -> None:
    order(place)
    place.filler.told["c1"] = FillProgress(0, 0, "", True)
    filling = LmdbSliceFilling(place.filler.begun["c1"][1], SETTINGS)
    filling.begin("g")
    filling.finish(STATE, Counts())
    filling.close()
    place.restart()
    place.hosting.look_after(0)
    assert told(place) == ("CATCHUP", "c1")


def test_another_source_is_told_to_the_filler(place: Place) -> None:
    order(place)
    folder = place.filler.begun["c1"][1]
    (folder / "part").touch()
    copy = order(place, source="n3")
    assert place.filler.begun["c1"] == (copy, folder)
    assert (folder / "part").exists(), "what generation it is of is for the filler to see"


def test_another_rate_is_told_to_the_filler_until_the_copy_is_whole(place: Place) -> None:
    copy = order(place)
    folder = place.filler.begun["c1"][1]
    (folder / "part").touch()
    place.write(replace(copy, rate=1_000))
    place.hosting.reconcile(place.catalog, 0)
    assert place.filler.begun["c1"] == (replace(copy, rate=1_000), folder)
    assert (folder / "part").exists()
    fill(place)
    runner = place.hosting.runners[KEY]
    place.write(copy)
    place.hosting.reconcile(place.catalog, 0)
    assert place.filler.begun == {}
    assert (told(place), place.hosting.runners[KEY] is runner) == (("CATCHUP", "c1"), True)


def test_what_was_filled_of_another_copy_is_thrown_away(place: Place) -> None:
    order(place)
    folder = place.filler.begun["c1"][1]
    (folder / "part").touch()
    place.catalog.remove("copy/c1")
    place.hosting.reconcile(place.catalog, 0)
    assert (place.filler.begun, folder.exists()) == ({}, False)
    order(place, "c2")
    assert list(place.filler.begun) == ["c2"]
    assert not (folder / "part").exists()


def test_what_was_filled_of_another_copy_before_a_restart_is_thrown_away(place: Place) -> None:
    order(place)
    (place.filler.begun["c1"][1] / "part").touch()
    place.hosting.close()
    place.catalog.remove("copy/c1")
    place.begin()
    order(place, "c2")
    assert not (place.filler.begun["c2"][1] / "part").exists()


def test_a_copy_that_counts_and_is_not_there_is_lost_and_never_begun_empty(place: Place) -> None:
    count(place, ["c1"])
    assert told(place) == ("LOST", "c1")
    assert "not on this node" in place.status().reason
    place.restart()
    assert told(place) == ("LOST", "c1")
    assert not place.exists()


@pytest.mark.parametrize("there", ["c1", ""])
def test_the_data_of_another_copy_is_as_good_as_none(place: Place, there: str) -> None:
    if there:
        order(place)
        fill(place)
    else:
        place.index("BUILDING", nodes=("n1", "n2"))
    place.hosting.close()
    place.begin()
    count(place, ["c9"])
    assert told(place) == ("LOST", "c9")
    assert f"of copy {there or 'none'}, not c9" in place.status().reason


def test_a_lost_copy_is_filled_anew_under_another_id(place: Place) -> None:
    order(place)
    fill(place)
    count(place)
    place.hosting.runners[KEY].lose("a page is not what was written", 0, damaged=True)
    place.hosting.look_after(0)
    assert told(place) == ("LOST", "c1")
    count(place, [])
    assert place.hosting.statuses(0) == [], "it counts no more"
    order(place, "c2")
    assert told(place) == ("FILLING", "c2")
    fill(place, "c2")
    assert told(place) == ("CATCHUP", "c2")


def test_a_copy_that_is_lost_before_it_counts_says_so_and_is_not_filled_again(place: Place) -> None:
    order(place)
    fill(place)
    place.hosting.runners[KEY].lose("its queue was trimmed", 0)
    place.hosting.look_after(0)
    assert told(place) == ("LOST", "c1")
    place.hosting.reconcile(place.catalog, 0)
    assert (told(place), place.filler.begun) == (("LOST", "c1"), {})


def test_a_copy_of_another_build_is_lost(place: Place) -> None:
    order(place)
    fill(place, state=replace(STATE, build="b-0"))
    assert told(place) == ("LOST", "c1")
    assert "of build b-0, not b-1" in place.status().reason


def test_a_copy_waits_for_the_rollback_that_its_source_has_gone_through(place: Place) -> None:
    order(place)
    fill(place, state=replace(STATE, incarnation=1))
    assert told(place)[0] == "STOPPED"
    assert "does not tell yet of incarnation 1" in place.status().reason
    assert KEY not in place.reading.places


def test_a_copy_that_is_taken_away_is_deleted(place: Place) -> None:
    order(place)
    fill(place)
    count(place)
    count(place, [])
    assert (place.hosting.runners, place.hosting.statuses(0), place.exists()) == ({}, [], False)


def test_an_index_that_is_gone_takes_what_is_filled_of_it_along(place: Place) -> None:
    order(place)
    folder = place.filler.begun["c1"][1]
    place.drop()
    assert (place.filler.begun, folder.exists(), place.folder.slices()) == ({}, False, [])


def test_a_build_begins_a_slice_anew_that_was_filled_before(place: Place) -> None:
    order(place)
    fill(place)
    count(place)
    place.catalog.remove("copy/c1")
    record = place.catalog.index("i-1")
    assert record is not None
    place.write(replace(record, state="BUILDING", build="b-2", copies={}))
    place.hosting.reconcile(place.catalog, 0)
    assert told(place) == ("BUILDING", "")
    assert place.folder.copy_id(KEY) == ""


def test_a_copy_that_leaves_goes_on_until_it_is_named_no_more(place: Place) -> None:
    order(place)
    fill(place)
    count(place)
    runner = place.hosting.runners[KEY]
    record = place.catalog.index("i-1")
    assert record is not None
    for acknowledged in (False, True):
        leaving = {0: {"n1": LeavingCopy("c1", acknowledged)}}
        place.write(replace(record, placement=[["n2"], ["n2"]], copies={}, leaving=leaving))
        place.hosting.reconcile(place.catalog, 0)
        assert place.hosting.runners[KEY] is runner
        assert told(place)[1] == "c1"
        assert place.status().leases == 0
    place.restart()
    assert told(place)[1] == "c1"
    assert told(place)[0] != "LOST", "a restart finds it"
    place.write(replace(record, placement=[["n2"], ["n2"]], copies={}, leaving={}))
    place.hosting.reconcile(place.catalog, 0)
    assert (place.hosting.runners, place.exists()) == ({}, False)


def test_a_copy_that_leaves_and_has_nothing_is_lost_and_not_begun_anew(place: Place) -> None:
    record = place.catalog.index("i-1")
    assert record is not None
    place.write(replace(record, placement=[["n2"], ["n2"]], leaving={0: {"n1": LeavingCopy()}}))
    place.hosting.reconcile(place.catalog, 0)
    assert told(place) == ("LOST", "")
