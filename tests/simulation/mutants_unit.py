"""Planted faults that no history can show, each with the test that sees it.

A rule is here and not among the simulation's mutants when the simulated world leaves out what the rule is
against (transactions, expiry, documents in two source partitions, chunks out of order), or when another rule
hides its absence there. It is switched off all the same, and the named test must fail then: `test_mutants.py`
runs it both ways.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from coordinator.builds import backfill as backfilling
from coordinator.builds.admission import BuildAdmission
from coordinator.builds.builds import Builds
from coordinator.builds.completion import BuildCompletion
from coordinator.builds.retirement import Retirement
from coordinator.core.events import BuildPrepared, SourceSampled
from coordinator.core.nodes import HeardNodes
from coordinator.sources import source_checks as source
from coordinator.stability import bounds
from coordinator.stability.issuer import TimestampIssuer
from coordinator.stability.projector_lag import Lateness, LatenessWatch
from coordinator.stability.publishing import Publishing
from coordinator.stability.stream import StabilityStream
from indexer.scan.gather import holds
from indexer.scan.gather.failover import CopyRequests
from indexer.scan.local.reader import LocalReader
from indexer.scan.plan.errors import SnapshotMissingError
from indexer.slice import mutation_queue
from indexer.slice.building import Building
from indexer.slice.core import SliceCore
from indexer.slice.corrections import Correcting
from indexer.slice.events import Instruction, MutationData
from indexer.slice.evicted import EvictedMutations
from indexer.slice.following import QueueFollower
from indexer.slice.gaps import Gaps
from indexer.slice.mutation_queue import PendingMutations, _PartitionQueue
from indexer.slice.pending_timestamps import PendingStamps
from indexer.store.fold.fold import FoldJob
from indexer.store.interface import UNNUMBERED, Applied
from indexer.store.lmdb.base import Base
from indexer.store.lmdb.folding import Folding
from indexer.store.lmdb.levels import Level
from indexer.store.resolve import resolve
from keytide.catalog.history import History
from keytide.model.timestamp import Timestamp
from keytide.wire import digests
from keytide.wire.messages import Segment
from projector.core import pipeline
from projector.core.projection import SourceBatch
from projector.progress.tracker import Tracker
from streaming.core import micro_batches
from streaming.repair import corrections as composing
from streaming.verify.core.comparing import Evidence
from streaming.verify.core.difference import DifferenceClass
from tests.memory_store import store as memory
from tests.property import test_verify
from tests.simulation.planting import Patches
from tests.unit import (
    test_builds,
    test_coordinator_bounds,
    test_coordinator_core,
    test_coordinator_rollback,
    test_repair_rounds,
    test_repair_slice,
    test_scan_copies,
    test_silent_partitions,
    test_slice_core,
    test_store,
    test_store_back,
    test_store_bulk,
    test_streaming_core,
    test_tracker,
)
from tests.unit.leader_world import facts

RARE = "it takes a history in some ten thousand"
NOTHING: Mapping[str, Any] = MappingProxyType({})


class UnitMutant(NamedTuple):
    """A planted fault that a test of one part sees.

    Attributes:
        rules: of docs/protocol.md that it breaks.
        text: what is wrong.
        why: no history can show it.
        plant: makes the change.
        test: must pass without the change, and fail with it.
        given: arguments of the test, beside fixtures.
    """

    name: str
    rules: str
    text: str
    why: str
    plant: Callable[[Patches], None]
    test: Callable[..., None]
    given: Mapping[str, Any] = NOTHING

    def run(self, **fixtures: Any) -> None:
        """Call the test with those fixtures that it asks for."""
        self.test(**{name: one for name, one in fixtures.items() if name in self.wanted()}, **self.given)

    def wanted(self) -> list[str]:
        """The parameters of the test."""
        return list(inspect.signature(self.test).parameters)

    def where(self) -> str:
        """The test, as pytest names it. (Hypothesis has those that it made in place of them where it made
        them: in a function of its own.)"""
        name = self.test.__qualname__.rpartition("<locals>.")[2]
        return f"{self.test.__module__.replace('.', '/')}.py::{name.replace('.', '::')}"


UNIT_MUTANTS: list[UnitMutant] = []
_Plant = Callable[[Patches], None]


def unit_mutant(
    rules: str, text: str, why: str, test: Callable[..., None], **given: Any
) -> Callable[[_Plant], _Plant]:
    """Adds a planted fault to the list."""

    def add(plant: _Plant) -> _Plant:
        UNIT_MUTANTS.append(UnitMutant(plant.__name__, rules, text, why, plant, test, given))
        return plant

    return add


@unit_mutant(
    "R31",
    "timestamps go on while a history is examined",
    "each is confirmed by a look at the log first, so that one history in some thousands shows it",
    test_coordinator_rollback.test_a_projectors_word_halts_timestamps_and_has_the_history_examined,
)
def stamp_while_examined(patches: Patches) -> None:
    patches.put(TimestampIssuer, "halt", lambda self, keyspace: None)


@unit_mutant(
    "R3 (terms)",
    "a timestamp of an older leader counts",
    "a number is an offset, so no two leaders have one; what terms add cannot be seen from outside",
    test_slice_core.test_lower_terms_and_other_incarnations_are_ignored,
)
def believe_old_leaders(patches: Patches) -> None:
    patches.put(SliceCore, "_valid_term", lambda self, message: True)


@unit_mutant(
    "R4 (what was let go of)",
    "it is not read again",
    RARE,
    test_slice_core.test_what_was_let_go_of_is_read_again_once_a_timestamp_reaches_it,
)
def evict_for_good(patches: Patches) -> None:
    patches.put(QueueFollower, "reads_again", lambda self: False)


@unit_mutant(
    "R4, R6 (what was let go of)",
    "the queue position passes it",
    RARE,
    test_slice_core.test_a_full_slice_lets_go_of_what_no_timestamp_reaches,
)
def forget_where_it_lies(patches: Patches) -> None:
    patches.put(EvictedMutations, "first_position", lambda self: None)


@unit_mutant(
    "R37",
    "a number is published when one copy of every slice holds it",
    "whoever waits there for a number that died with its copy gets a newer one",
    test_coordinator_core.test_every_copy_that_serves_must_hold_what_is_published,
)
def publish_what_one_copy_holds(patches: Patches) -> None:
    patches.put(HeardNodes, "counts", lambda self, *_: False)


@unit_mutant(
    "R37 (not heard in its own term)",
    "a new leader does not wait for a copy that it has not heard",
    "whoever waits there for a number that died with its copy gets a newer one",
    test_coordinator_core.test_a_new_leader_waits_for_copies_that_it_has_not_heard_until_they_are_silent,
)
def take_the_unheard_for_dead(patches: Patches) -> None:
    patches.put(HeardNodes, "counts", HeardNodes.copy_serves)


@unit_mutant(
    "R37 (that lag)",
    "a copy that lags is waited for",
    "none lags there for longer than a history lasts",
    test_coordinator_core.test_a_copy_that_lags_is_not_waited_for,
)
def wait_for_the_lagging(patches: Patches) -> None:
    def required(self: Publishing, stream: Any, record: Any) -> Any:
        return _required(self, dataclasses.replace(stream, lagging=set()), record)

    _required = patches.put(Publishing, "_required", required)


@unit_mutant(
    "R36 (in the middle of a read)",
    "a slice is asked at one copy only",
    "a read that failed is asked again there",
    test_scan_copies.test_pages_live_while_each_copy_is_away_in_turn,
)
def stay_with_one_copy(patches: Patches) -> None:
    patches.put(CopyRequests, "_untried_of", lambda self, request, number, further: [])


@unit_mutant(
    "R38",
    "one copy only keeps the snapshot of pages and holds",
    "a page whose copy has died may be gone there",
    test_scan_copies.test_pages_live_through_the_death_of_any_one_copy,
    dead="n1",
)
def keep_on_one_copy(patches: Patches) -> None:
    patches.put(holds, "COPIES", 1)


@unit_mutant(
    "R38 (gone)",
    "a page is gone when one copy of a slice has lost it and the other does not answer",
    "a page that was told to be gone is not asked for again there",
    test_scan_copies.test_a_page_is_gone_only_when_all_its_copies_are,
)
def gone_by_one_copy(patches: Patches) -> None:
    patches.put(SnapshotMissingError, "raise_if_passing", lambda self: None)


@unit_mutant(
    "R38 (slice by slice)",
    "a node that has lost a held snapshot in one slice has lost it in all",
    "two nodes must have lost one slice each, while a hold is read again and again",
    test_scan_copies.test_a_held_snapshot_is_gone_where_it_is_lost_and_nowhere_else,
)
def gone_in_all_slices(patches: Patches) -> None:
    def run_out(self: LocalReader, index: str, number: int, hold: str, slices: Sequence[int]) -> list[int]:
        return list(slices) if _run_out(self, index, number, hold, slices) else []

    _run_out: Callable[..., list[int]] = patches.put(LocalReader, "_run_out", run_out)


@unit_mutant(
    "R10 (read again)",
    "a gap stops its slice although the queue was not read again",
    "nothing is lost between queue and slice there",
    test_slice_core.test_a_gap_that_was_lost_on_its_way_is_filled_by_reading_again,
)
def stop_at_the_first_gap(patches: Patches) -> None:
    patches.put(SliceCore, "_read_again", lambda self, mode, now: False)


@unit_mutant(
    "R10 (how long a gap may stay)",
    "a gap stops its slice as soon as the queue's end was met",
    "reading the queue again finds what was missing there",
    test_slice_core.test_a_gap_stops_the_slice_only_when_the_queue_has_no_more_for_the_limit,
)
def stop_at_once(patches: Patches) -> None:
    def late(self: Gaps, now: int) -> list[int]:
        return list(_late(self, now + self._limit_ms + 1))

    _late = patches.put(Gaps, "late", late)


@unit_mutant(
    "R10 (how long a gap may stay)",
    "a gap that is never filled never stops its slice",
    "every gap is filled there, however long it takes",
    test_slice_core.test_a_gap_stops_the_slice_only_when_the_queue_has_no_more_for_the_limit,
)
def leave_the_gap(patches: Patches) -> None:
    patches.put(Gaps, "late", lambda self, now: [])


@unit_mutant(
    "R14 (empty segments)",
    "of a partition in which nothing was read nothing is sent",
    "reports of progress alone keep timestamps going; nothing is wrong or stuck in 400 histories",
    test_silent_partitions.test_a_partition_in_which_nothing_was_read_speaks_to_every_slice,
)
def send_records_only(patches: Patches) -> None:
    def batches_of(key: Any, start: int, end: int, *more: Any) -> list[SourceBatch]:
        return [one for one in _batches_of(key, start, end, *more) if one.end > one.start]

    _batches_of = patches.put(pipeline, "batches_of", batches_of)


@unit_mutant(
    "R17 (older ignored)",
    "the version that comes last counts, whatever its offset",
    "cutting keeps older versions of one source partition away, and a document has only one there",
    test_store.test_an_older_version_is_ignored_and_counted,
)
def last_comer_wins(patches: Patches) -> None:
    patches.put(resolve, "newer", lambda partition, offset, time, held: True)


@unit_mutant(
    "R19 (topics go after deactivation)",
    "DROP deletes topics while projectors still send to them",
    "segments of a projector that is behind are cut in a new topic, too",
    test_builds.test_drop_waits_until_projectors_have_let_go,
)
def delete_topics_at_once(patches: Patches) -> None:
    patches.put(Retirement, "_deactivated", lambda self, index, progress, since, now: True)


@unit_mutant(
    "R22 (append falls back to put)",
    "chunks that do not come in order are appended or nothing",
    "chunks are in order there: it is the store's business",
    test_store_bulk.test_what_cannot_be_appended_is_put,
    what="order",
)
def append_or_fail(patches: Patches) -> None:
    def load(self: Base, *of: Any) -> Any:
        return self._load(self._append if self._empty() else self._put, *of)

    patches.put(Base, "load", load)


@unit_mutant(
    "R23 (after the last batch)",
    "a slice obeys the end of a build before it has the last batch",
    "the queue's order says the same",
    test_slice_core.test_the_end_of_the_build_waits_for_the_last_batch_and_switches,
)
def end_without_the_last_batch(patches: Patches) -> None:
    def switch(self: Building) -> list[Instruction]:
        end = self._end
        if end is not None:
            self._end = msgspec.structs.replace(end, batches=0)
        out: list[Instruction] = _switch(self)
        self._end = end
        return out

    _switch = patches.put(Building, "_switch_if_over", switch)


@unit_mutant(
    "R24",
    "an open transaction below the load timestamp is neither shown nor waited for",
    "no transactions there; and R25's end lies past the load timestamp",
    test_builds.test_an_open_transaction_is_shown_and_waited_for_up_to_the_limit,
)
def overlook_transactions(patches: Patches) -> None:
    patches.put(backfilling, "open_transactions", lambda load, facts: [])


@unit_mutant(
    "R24 (high watermark)",
    "a build needs to load only what lies below open transactions",
    "no transactions there",
    test_builds.test_the_load_timestamp_is_the_end_behind_open_transactions,
)
def load_what_is_stable(patches: Patches) -> None:
    def prepared(self: BuildAdmission, event: BuildPrepared) -> list[Any]:
        stable = dataclasses.replace(event.source, high=event.source.stable)
        return list(_prepared(self, dataclasses.replace(event, source=stable)))

    _prepared = patches.put(BuildAdmission, "prepared", prepared)


@unit_mutant(
    "R25",
    "READY does not wait for the source's end, taken after the final micro-batch",
    "the cleaner would have to run between two of a few steps",
    test_builds.test_a_build_from_create_to_ready,
)
def ready_at_the_load_timestamp(patches: Patches) -> None:
    def common(self: BuildCompletion, event: Any) -> Any:
        for record in self._registry.all():
            if record.final_timestamp is not None:
                early = record.load_timestamp
                self._registry.note_progress(msgspec.structs.replace(record, final_timestamp=early))
        return _common(self, event)

    _common = patches.put(BuildCompletion, "common", common)


@unit_mutant(
    "Monotonic, the bound",
    "timestamps pass the bound before it is written",
    "a bound is written long before it is reached, and a leader would have to end between the two",
    test_coordinator_bounds.test_no_timestamp_passes_a_bound_that_is_not_written,
)
def pass_the_bound(patches: Patches) -> None:
    def within(self: StabilityStream, content: Timestamp) -> bool:
        bound, self.bound = self.bound, content
        try:
            return bool(_within(self, content))
        finally:
            self.bound = bound

    _within = patches.put(StabilityStream, "_within", within)


@unit_mutant(
    "R26 (builds)",
    "a build that may have missed tombstones goes on",
    "the cleaner there leaves tombstones",
    test_builds.test_a_build_that_can_never_be_right_fails_with_the_reason,
    later=facts(compacted=True, delete_retention_ms=1_000, at=9_000_000),
    reason="keeps tombstones",
)
def miss_tombstones_while_building(patches: Patches) -> None:
    patches.put(source, "_lost_tombstones", lambda build, facts: "")


@unit_mutant(
    "R26 (live indexes)",
    "an index whose projectors may have missed tombstones stays READY",
    "the cleaner there leaves tombstones",
    test_builds.test_live_indexes_that_may_have_missed_tombstones_fail,
)
def miss_tombstones(patches: Patches) -> None:
    def judge(self: LatenessWatch, *of: Any, **more: Any) -> Lateness:
        found: Lateness = _judge(self, *of, **more)
        return Lateness(found.hold)

    _judge = patches.put(LatenessWatch, "judge", judge)


@unit_mutant(
    "R27",
    "timestamps fall into what was read late",
    "the cleaner there stays behind the projectors",
    test_builds.test_no_timestamp_falls_into_a_range_that_was_read_late,
)
def stamp_what_was_read_late(patches: Patches) -> None:
    patches.put(LatenessWatch, "_hold", lambda self, watch, late, end, read: None)


@unit_mutant(
    "R28, lost before it has passed",
    "nobody looks once more at what a build has read when its driver has passed",
    "the log would have to be cut between the driver's last look and the coordinator's, a step later",
    test_builds.test_what_has_been_read_is_looked_for_when_the_driver_has_passed,
)
def trust_the_last_report(patches: Patches) -> None:
    def ends(self: Builds, event: SourceSampled) -> Any:
        return _ends(self, dataclasses.replace(event, lost={}))

    _ends = patches.put(Builds, "_source_ends", ends)


@unit_mutant(
    "R29 (entries stay)",
    "a repair corrects documents whose records retention took",
    "no repair and no verification runs there where records expire",
    test_repair_rounds.test_only_faults_of_the_index_are_wanted,
)
def correct_what_is_gone(patches: Patches) -> None:
    patches.put(composing, "CORRECTED", composing.CORRECTED | {DifferenceClass.UNPROVABLE})


@unit_mutant(
    "R29 (verification)",
    "entries whose records retention took are told as wrong",
    "no repair and no verification runs there where records expire",
    test_verify.test_one_record_that_retention_took,
)
def compare_what_is_gone(patches: Patches) -> None:
    patches.put(digests, "below", lambda floors, *version: False)
    patches.put(Evidence, "below", lambda self, version: False)


@unit_mutant(
    "R30 (an election's loss that nobody tells)",
    "a segment continues what is held of an earlier leader than its sender has read there",
    "two sends must fail to one slice and not to another, behind an election whose loss nobody tells",
    test_slice_core.test_what_continues_another_branch_than_its_sender_has_read_is_not_taken,
)
def continue_any_branch(patches: Patches) -> None:
    patches.put(PendingMutations, "_continues_another_branch", lambda self, segment: False)


@unit_mutant(
    "R30 (await)",
    "a message of a later incarnation is passed over before its rollback is known",
    "the position does not pass what was taken too early, and it is read again",
    test_slice_core.test_a_later_history_makes_deaf_until_the_dictionary_tells,
)
def pass_the_future(patches: Patches) -> None:
    def data(self: QueueFollower, event: MutationData) -> None:
        _data(self, event)
        if self.deaf:
            self.deaf, self._cursor = 0, event.position + 1

    _data = patches.put(QueueFollower, "data", data)


@unit_mutant(
    "R30 (chain)",
    "only the first rollback after a message cuts it",
    "needs two rollbacks and a message older than both",
    test_slice_core.test_each_incarnation_is_cut_where_its_own_branch_ends,
)
def cut_by_the_next_rollback(patches: Patches) -> None:
    def limit(self: History, incarnation: int) -> Timestamp | None:
        return next((one.timestamp for one in self._rollbacks if one.incarnation > incarnation), None)

    patches.put(History, "limit", limit)


@unit_mutant(
    "R33 (commits without a number)",
    "a fold of them leaves no way back",
    "a slice that cannot step back is built anew there, which is right as well",
    test_store_back.test_commits_without_a_number_are_undone_too,
)
def fold_without_a_way_back(patches: Patches) -> None:
    def job(self: Folding, frozen: Level) -> FoldJob:
        found: FoldJob = _job(self, frozen)
        return dataclasses.replace(found, undo_bytes=0) if self._state[0].number == UNNUMBERED else found

    def finish_fold(self: memory.MemorySliceStore, wait_s: float = 0.0) -> Applied | None:
        durable: Applied | None = _finish_fold(self, wait_s)
        if durable is not None and durable.number == UNNUMBERED:
            self._undo.clear()
        return durable

    _job = patches.put(Folding, "_job", job)
    _finish_fold = patches.put(memory.MemorySliceStore, "finish_fold", finish_fold)


@unit_mutant(
    "Monotonic, expired control",
    "a leader that knows no timestamp begins with what is acknowledged",
    RARE,
    test_coordinator_bounds.test_a_leader_without_a_timestamp_waits_for_what_may_have_been_seen,
)
def forget_the_floor(patches: Patches) -> None:
    patches.put(bounds.Bounds, "recover", lambda self: [])


@unit_mutant(
    "R13",
    "a new owner goes on although it does not know the version of the commit yet",
    RARE,
    test_tracker.TestActivation().test_a_new_owner_waits_for_the_version_of_the_commit,
)
def do_not_wait_for_the_version(patches: Patches) -> None:
    def assigned(self: Tracker, event: Any) -> Any:
        known = self._view(event.key).version
        return _assigned(self, event._replace(version=min(event.version, known)))

    _assigned = patches.put(Tracker, "_assigned", assigned)


@unit_mutant(
    "R30, a marker in place of what is lost",
    "only records show that what is held is lost",
    RARE,
    test_slice_core.test_a_marker_in_the_place_of_what_is_held_shows_that_it_is_lost,
)
def believe_records_only(patches: Patches) -> None:
    def differs(segment: Any, part: Any, end: int) -> bool:
        return segment.heard is not None and _differs(segment, part, end)

    _differs = patches.put(mutation_queue, "_either_has_documents", differs)


@unit_mutant(
    "R16, what is not heard",
    "only records that are heard show what is lost",
    "few histories have slices that do not hear all, and none of 3,000 such ones shows it",
    test_slice_core.test_what_a_slice_does_not_hear_shows_what_is_lost_as_well,
)
def believe_what_is_heard_only(patches: Patches) -> None:
    def there(segment: Segment, start: int, end: int) -> bool:
        return bool(_there(msgspec.structs.replace(segment, present=b""), start, end))

    _there = patches.put(mutation_queue, "has_documents", there)


@unit_mutant(
    "R30, what made room",
    "what made room stays applied when an election has lost it",
    RARE,
    test_slice_core.test_what_made_room_and_an_election_has_lost_makes_the_slice_lost,
)
def keep_what_made_room(patches: Patches) -> None:
    patches.put(PendingStamps, "vouch_for", lambda self, partition, place: True)


@unit_mutant(
    "R30, what made room",
    "a restart forgets what was applied in doubt",
    RARE,
    test_slice_core.test_a_restart_does_not_forget_what_was_applied_in_doubt,
)
def forget_doubt_at_a_restart(patches: Patches) -> None:
    def begin(self: QueueFollower, index: str, number: int, applied: Applied, *rest: Any) -> None:
        _begin(self, index, number, msgspec.structs.replace(applied, doubted={}), *rest)

    _begin = patches.put(QueueFollower, "__init__", begin)


@unit_mutant(
    "R30, an election's loss that a build has not read",
    "a slice does not know of which leader its build has read the last",
    RARE,
    test_streaming_core.test_a_batch_end_for_every_slot_names_only_attempts_that_sent_it_something,
)
def end_without_epochs(patches: Patches) -> None:
    def ends(*of: Any) -> list[Any]:
        bare = [(one, Timestamp.of(one.end.offsets(), one.end.topic_id)) for one in _ends(*of)]
        return [msgspec.structs.replace(one, end=end) for one, end in bare]

    _ends = patches.put(micro_batches, "batch_ends", ends)


@unit_mutant(
    "repair",
    "a slice judges by what it has read again so far",
    RARE,
    test_repair_slice.test_a_restart_with_later_changes_reads_them_again_before_it_judges,
)
def judge_what_is_not_read(patches: Patches) -> None:
    patches.put(Correcting, "_has_read", lambda self, low, high: True)


@unit_mutant(
    "R30, an election's loss that nobody tells",
    "a timestamp of a later leader is committed before a segment of that leader that reaches as far",
    RARE,
    test_slice_core.test_a_timestamp_of_a_later_leader_waits_until_that_was_heard_of,
    lost=True,
)
def commit_before_its_leader_was_heard(patches: Patches) -> None:
    patches.put(_PartitionQueue, "vouched_for", lambda self, place, arrival: True)
