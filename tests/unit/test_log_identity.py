"""Whether what a build reads is of one log: judged record by record, and by the driver's micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keytide.errors import RetryableError
from keytide.model.log_history import LogHistory, PartitionHistory
from keytide.model.timestamp import Place, Timestamp
from streaming.backfill import batches
from streaming.backfill.batches import Batches, BatchTasks, BuildPlan, run_through
from streaming.core import log_identity
from streaming.core import micro_batches as core
from streaming.core.sizing import Sizing
from streaming.core.versions import OffsetColumn
from streaming.spark.checkpoint import Range
from tests.unit.kept_journal import KeptJournal


def log(*branches: tuple[int, int], leader: int | None = None) -> LogHistory:
    """One partition's log of branches (epoch, end)."""
    end = branches[-1][1] if branches else 0
    epoch = branches[-1][0] if leader is None else leader
    return LogHistory("T", {0: PartitionHistory(0, end, epoch, branches, end)})


def at(offset: int, epoch: int = -1) -> Timestamp:
    return Timestamp({0: Place(offset, epoch)}, "T")


def test_what_was_read_is_lost_with_its_branch() -> None:
    assert log_identity.lost(at(7, 0), log((0, 7))) == ""
    assert log_identity.lost(at(7, 0), log((0, 9), (1, 12))) == ""
    assert "from 3 on" in log_identity.lost(at(7, 0), log((0, 3), (1, 12)))
    assert log_identity.lost(at(7), log((0, 3), (1, 5))) == "", "nothing is known of its branch"


def test_a_log_that_ends_below_the_batch_cuts_it_short() -> None:
    assert log_identity.cut_short(at(7), log((0, 7))) == ""
    assert "ends at 6" in log_identity.cut_short(at(7), log((0, 3), (1, 6)))
    assert log_identity.cut_short(at(7), LogHistory("T"))


@pytest.mark.parametrize(
    ("before", "now", "mixed"),
    [
        (log((0, 7)), log((0, 9)), False),
        (log((0, 7)), log((0, 7), (1, 9)), False),  # nothing below the end is the new leader's
        (log((0, 7)), log((0, 6), (1, 9)), True),
        (log((0, 7)), log((0, 7), (2, 9)), True),  # who led between the two may have had other records
        (log((0, 7), leader=1), log((0, 7), leader=2), True),  # (a leader that wrote nothing leaves no trace)
    ],
)
def test_a_change_of_leaders_mixes_what_the_new_one_may_have_otherwise(
    before: LogHistory, now: LogHistory, mixed: bool
) -> None:
    assert log_identity.mixed(before, now, at(2), at(7)) == ([0] if mixed else [])
    assert log_identity.mixed(before, now, at(7), at(7)) == [], "nothing was read"


def test_ends_get_the_epochs_of_their_log_and_positions_those_that_are_known() -> None:
    now = log((0, 4), (3, 9))
    assert log_identity.placed(at(7), at(4, 0), now) == at(7, 3)
    assert log_identity.placed(at(4), at(2, 0), now) == at(4, 0)
    assert log_identity.placed(at(4), at(4, 0), log((3, 9))) == at(4, 0), "nothing came: its place stays"
    both = Timestamp({0: Place(7), 1: Place(5)}, "T")
    assert log_identity.known(both, at(7, 3)) == Timestamp({0: Place(7, 3), 1: Place(5)}, "T")
    assert log_identity.known(at(6), at(7, 3)) == at(6)


Elections = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=4)
"""(records that are lost, records that the new leader writes)."""


@given(st.integers(1, 8), Elections, Elections, Elections, st.integers(1, 9), st.data())
def test_what_passes_both_looks_is_on_the_log(
    first: int, before: Any, between: Any, after: Any, size: int, data: st.DataObject
) -> None:
    """A batch is read record by record while leaders change: what passes is what the log has, and all that
    was read before as well. (Lost records do not come back here.)"""
    records = [(0, offset) for offset in range(first)]
    epoch, number = 0, first

    def elect(lost: int, written: int) -> None:
        nonlocal epoch, number
        del records[max(0, len(records) - lost) :]
        epoch += 1
        records.extend((epoch, number + n) for n in range(written))
        number += written

    def history() -> LogHistory:
        ends: dict[int, int] = {}
        for offset, (one, _) in enumerate(records):
            ends[one] = offset + 1
        whole = PartitionHistory(0, len(records), epoch, tuple(sorted(ends.items())), len(records))
        return LogHistory("T", {0: whole})

    read_to = data.draw(st.integers(0, len(records)))
    held = list(records[:read_to])
    read = log_identity.placed(at(read_to), Timestamp(), history())
    for one in before:
        elect(*one)
    looked = history()
    if log_identity.lost(read, looked):
        return
    end = read_to + size
    taken: list[tuple[int, int]] = []
    for one in [*between, None]:
        upto = data.draw(st.integers(len(taken), size)) if one else size
        taken += records[read_to + len(taken) : read_to + upto]
        if one:
            elect(*one)
    now = history()
    fine = not log_identity.lost(read, now) and not log_identity.cut_short(at(end), now)
    if not fine or log_identity.mixed(looked, now, at(read_to), at(end)):
        return
    held += taken
    assert held == records[:end]
    read = log_identity.placed(at(end), read, now)
    for one in after:
        elect(*one)
    assert (log_identity.lost(read, history()) == "") is (held == records[:end])


# --- micro-batches ------------------------------------------------------------------------------------------

COVERED = Range(at(2), at(7))
OUTCOME = core.SettledBatch([], [], 5, b"", {}, {})


class Reading(Batches):
    """Reads nothing, and counts how often; its clock goes on while it waits.

    Args:
        looks: what looks at the source show, the last one for ever.
    """

    def __init__(self, *looks: LogHistory) -> None:
        self.readings = 0
        self.status = KeptJournal().status()
        self._looks = list(looks)
        self._time = 0.0
        plan = BuildPlan("b", "r", "s", "T", (), {})
        tasks = cast(BatchTasks, self)
        super().__init__(plan, self.status, Sizing(9, 1, 1.0), tasks, self, self.wait, lambda: self._time)

    async def read(self, batch: int, covered: Range, losers: Mapping[int, OffsetColumn]) -> core.SettledBatch:
        self.readings += 1
        return OUTCOME

    def check(self) -> None:
        """It is."""

    def history(self, read: Timestamp) -> LogHistory:
        return self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]

    async def wait(self, seconds: float) -> None:
        self._time += seconds

    def batch(self, before: LogHistory) -> tuple[core.SettledBatch, Timestamp]:
        return run_through(self._read(1, COVERED, before))

    def look(self, before: LogHistory | None = None) -> LogHistory:
        return run_through(self._checked_history(COVERED.end, before))


def test_a_batch_is_read_again_when_its_leader_has_changed() -> None:
    one = Reading(log((0, 3), (1, 9)))
    assert one.batch(log((0, 9))) == (OUTCOME, at(7, 1))
    assert one.readings == 2
    one = Reading(*(log((0, 3), (epoch, 9)) for epoch in range(1, 9)))
    with pytest.raises(RetryableError, match="changed in each"):
        one.batch(log((0, 9)))
    assert one.readings == batches.READINGS


def test_a_batch_on_another_log_than_the_one_before_ends_the_driver() -> None:
    one = Reading(log((0, 3), (1, 9)))
    one.status.settle_batch(at(5, 0), None)
    with pytest.raises(log_identity.ReadLostError, match="from 3 on"):
        one.batch(log((0, 9)))
    with pytest.raises(log_identity.ReadLostError, match="from 3 on"):
        one.look()  # the first of the next driver
    one = Reading(log((0, 1), (1, 5)))
    with pytest.raises(log_identity.ReadLostError, match="ends at 5"):
        one.batch(log((0, 9)))


def test_a_leader_that_was_replaced_is_asked_again() -> None:
    old, new = log((0, 9)), log((0, 2), (1, 9))
    assert Reading(old, old, new).look(new) == new
    with pytest.raises(RetryableError, match="replaced"):
        Reading(old).look(new)
    with pytest.raises(RetryableError, match="changes while"):
        Reading(LogHistory("U", new.partitions)).look(new)


def test_where_it_stands_is_kept_before_anybody_hears_of_it() -> None:
    kept = KeptJournal()
    status = kept.status()
    status.settle_batch(at(7, 1), None)
    again = kept.status()
    assert again.journal.read == at(7, 1)
    again.resume(3, at(7), at(0))
    assert again.report("b", "r", 0).timestamp == at(7, 1)
    again.resume(2, at(2), at(0))  # the ends were sent, and Spark has not committed the batch
    assert again.report("b", "r", 0).timestamp == at(2)
