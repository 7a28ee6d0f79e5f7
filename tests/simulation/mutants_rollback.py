"""Planted faults in rollback, rebuilds and trimming: R15, R28, R30 to R34, and what the model of
rollback names. Importing this adds them to `mutants.MUTANTS`."""

from __future__ import annotations

import dataclasses
from typing import Any

from coordinator.builds import rebuild as rebuilding
from coordinator.builds.builds import Builds
from coordinator.builds.completion import BuildCompletion
from coordinator.queues import trimming
from coordinator.rollback import rollback
from coordinator.stability import topic_confirmation as confirming
from indexer.hosting.snapshots import SnapshotRing
from indexer.scan.plan import directory
from indexer.slice.core import SliceCore
from indexer.slice.events import DataLost, SteppedBack
from indexer.slice.following import QueueFollower
from indexer.slice.mutation_queue import PendingMutations
from indexer.store.interface import UNNUMBERED
from keytide.catalog.history import History
from keytide.model.timestamp import Place, Timestamp
from projector.progress.commits import Beginning, decode_metadata
from projector.progress.partition import PartitionState
from projector.progress.tracker import Tracker
from projector.service import lookups
from projector.service import projector as service
from projector.service.source import GroupMember
from streaming.core import log_identity as footing
from tests.memory_store import store as memory
from tests.simulation.mutants import mutant
from tests.simulation.planting import Patches

LOST = ("truncate",)
ANEW = ("recreate",)


@mutant("R15", "nobody looks whether what was read is still on the log", faults=LOST)
def trust_the_log(patches: Patches) -> None:
    def take_over(key: Any, begin: Any, history: Any, parting: Any, catalog: Any) -> Any:
        return _take_over(key, begin, history, None, catalog)

    def check(key: Any, place: Any, incarnation: int, history: Any, parting: Any, catalog: Any) -> Any:
        return _check(key, place, incarnation, history, None, catalog)

    _take_over = patches.put(lookups, "take_over", take_over)
    _check = patches.put(lookups, "check", check)
    patches.put(PartitionState, "strange", lambda self, epochs: None)
    patches.put(rollback.Rollbacks, "_sampled", lambda self, facts, now: [])
    patches.put(rollback.Rollbacks, "_reported", lambda self, message, now: [])


@mutant("R15, markers", "a range without a record is passed under the epoch known so far", faults=LOST)
def pass_markers(patches: Patches) -> None:
    patches.put(GroupMember, "epoch_below", lambda self, key, end: -1)
    patches.put(PartitionState, "unlooked", lambda self, end, epoch: False)


@mutant(
    "R28, lost before it is reported", "nobody looks whether what a build reads is of one log", faults=LOST
)
def trust_the_offsets(patches: Patches) -> None:
    patches.put(footing, "lost", lambda read, now: "")
    patches.put(footing, "mixed", lambda before, now, start, end: [])
    patches.put(footing, "cut_short", lambda end, now: "")


@mutant("R15, topic id", "nobody asks which topic was read before its records are stamped", faults=ANEW)
def trust_the_name(patches: Patches) -> None:
    def ask(stream: Any, now: int) -> list[Any]:
        stream.confirmed = stream.progress.content()
        return []

    patches.put(confirming, "ask", ask)


@mutant("R28", "builds go on over a rollback", faults=LOST)
def keep_builds(patches: Patches) -> None:
    patches.put(Builds, "rolled_back", lambda self, *_: [])


@mutant("R30, branch, ignore the branch", "what was sent before a rollback counts in full", faults=LOST)
def ignore_the_branch(patches: Patches) -> None:
    patches.put(QueueFollower, "_limit", lambda self, incarnation: None)


@mutant("R30, an election's loss that nobody tells", "what is held of a lost branch stays", faults=LOST)
def keep_what_is_lost(patches: Patches) -> None:
    patches.put(PendingMutations, "_settle", lambda self, segment, end: None)


@mutant("R30, markers", "a range above a marker is sent under the epoch of the records below it")
def hide_the_marker(patches: Patches) -> None:
    def batches_of(key: Any, start: int, end: int, epoch: int, columns: Any, marked: int = -1) -> Any:
        return _batches_of(key, start, end, epoch, columns)

    def reached_by(batches: Any, tail: int, marked: int = -1) -> Any:
        return _reached_by(batches, tail)

    _batches_of = patches.put(service, "batches_of", batches_of)
    _reached_by = patches.put(service, "reached_by", reached_by)


@mutant("R31, void", "numbers past the rollback stay", faults=LOST)
def keep_void_numbers(patches: Patches) -> None:
    patches.put(History, "number_holds", lambda self, number, incarnation: True)


@mutant("R31, commitreset", "projectors go on from their commits", faults=LOST)
def keep_commits(patches: Patches) -> None:
    def beginning(key: Any, commit: Any, catalog: Any) -> Any:
        begin = _beginning(key, commit, catalog)
        if not begin.cut or commit.offset is None:
            return begin
        said = decode_metadata(commit.metadata)
        record = catalog.keyspace(key.keyspace)
        place = Place(commit.offset, -1)
        return Beginning(place, 0, said.v, record.topic_id, record.incarnation)

    _beginning = patches.put(lookups, "beginning", beginning)


@mutant("R31, progreset", "progress of before the rollback counts after it", faults=LOST)
def keep_progress(patches: Patches) -> None:
    from coordinator.stability.progress import KeyspaceProgress

    def begin(self: KeyspaceProgress, timestamp: Timestamp, before: KeyspaceProgress | None) -> None:
        _begin(self, timestamp.merge_max(before.timestamp()) if before else timestamp, before)

    _begin = patches.put(KeyspaceProgress, "begin", begin)


@mutant("R31", "a keyspace's partitions are not taken over again", faults=LOST)
def do_not_take_over(patches: Patches) -> None:
    def changed(self: Tracker, event: Any) -> Any:
        old = self._views.get(event.keyspace)
        if old is not None:
            event = event._replace(incarnation=old.incarnation, topic_id=old.topic_id)
        return _changed(self, event)

    _changed = patches.put(Tracker, "_changed", changed)


@mutant("R31, T_k", "the rollback goes to the newest timestamp, on the log or not", faults=LOST)
def roll_back_to_the_newest(patches: Patches) -> None:
    from tests.simulation import coordinators

    def newest(stamps: Any, stood: Any, ask: Any) -> Any:
        found = _newest(stamps, stood, ask)
        first = next(iter(stamps), None)
        return found if first is None else found._replace(number=first[0], timestamp=first[1])

    _newest = patches.put(coordinators, "newest_on_log", newest)


@mutant("R32", "scans answer from snapshots that a rollback has voided", faults=LOST)
def answer_from_void(patches: Patches) -> None:
    patches.put(SnapshotRing, "roll_back", lambda self, history: None)
    patches.put(directory, "check_history", lambda seen, history: None)
    patches.put(History, "number_holds", lambda self, number, incarnation: True)


@mutant("R33", "a store is not taken back", faults=LOST)
def do_not_step_back(patches: Patches) -> None:
    patches.put(memory.MemorySliceStore, "step_back", lambda self, holds: True)
    patches.put(SliceCore, "_holds", lambda self, applied: True)


@mutant("R33", "a store that cannot step back far enough is kept as it is", faults=LOST)
def keep_what_cannot_step_back(patches: Patches) -> None:
    def step_back(store: Any, ring: Any, history: Any, begin_anew: Any) -> Any:
        kept, outcome = _step_back(store, ring, history, begin_anew)
        if isinstance(outcome, DataLost):
            outcome = SteppedBack(kept.applied, -1)
        return kept, outcome

    from indexer.hosting import slice_runner as slices

    _step_back = patches.put(slices, "step_back", step_back)
    patches.put(SliceCore, "_holds", lambda self, applied: True)


@mutant("R33, commits without a number", "a fold of them is not in the undo journal", faults=LOST)
def undo_numbered_only(patches: Patches) -> None:
    def finish_fold(self: memory.MemorySliceStore, wait_s: float = 0.0) -> Any:
        frozen, before = self._frozen, self._durable
        durable = _finish_fold(self, wait_s)
        if frozen is not None and frozen.applied.number == UNNUMBERED:
            self._undo[-1] = dataclasses.replace(frozen, applied=before.applied)
        return durable

    _finish_fold = patches.put(memory.MemorySliceStore, "finish_fold", finish_fold)


@mutant("R33", "the store of a topic made anew is kept", faults=ANEW)
def keep_the_old_topic(patches: Patches) -> None:
    patches.put(History, "begins_anew", lambda self, incarnation: False)
    patches.put(History, "holds", lambda self, timestamp, incarnation: True)


@mutant("R34", "queues are trimmed to their ends", faults=("node-crash",))
def trim_everything(patches: Patches) -> None:
    def said(self: trimming.Trimmer, *arguments: Any) -> Any:
        copy = _said(self, *arguments)
        return copy and copy._replace(horizon=1 << 30)

    _said = patches.put(trimming.Trimmer, "_said", said)


@mutant("R34", "queues are trimmed to what the fastest copy needs", faults=("node-crash",))
def trim_by_the_fastest(patches: Patches) -> None:
    def limits_of(self: trimming.Trimmer, index: Any, now: int) -> Any:
        found = _limits_of(self, index, now)
        most = max((copy.position for one in found for copy in one.copies), default=-1)
        return [dataclasses.replace(one, before=most) for one in found]

    _limits_of = patches.put(trimming.Trimmer, "_limits_of", limits_of)


@mutant("rebuild of one slice", "a rebuilt slice goes on at the end of its queue", faults=("disk-loss",))
def rebuild_from_the_end(patches: Patches) -> None:
    def build_end(self: BuildCompletion, record: Any) -> Any:
        from msgspec.structs import replace

        ends = {i: {n: at + 6 for n, at in of.items()} for i, of in record.queue_positions.items()}
        return _build_end(self, replace(record, queue_positions=ends))

    _build_end = patches.put(BuildCompletion, "build_end", build_end)


@mutant("rebuild of one slice", "lost slices are not rebuilt", faults=("disk-loss",))
def never_rebuild(patches: Patches) -> None:
    patches.put(rebuilding.Rebuilds, "tick", lambda self, now: [])


@mutant("R31", "a lost history is not examined", faults=LOST)
def never_examine(patches: Patches) -> None:
    patches.put(rollback.Rollbacks, "_suspect", lambda self, *_, **__: [])
    patches.put(rollback.Rollbacks, "_reported", lambda self, *_: [])
