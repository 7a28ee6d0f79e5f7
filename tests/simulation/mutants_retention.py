"""Planted faults where the source keeps records for a time only (R29). Importing this adds them to
`mutants.MUTANTS`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from coordinator.builds.admission import BuildAdmission
from coordinator.core.events import BuildPrepared
from coordinator.sources import source_checks as source
from keytide.catalog.records import BuildRecord
from keytide.model.timestamp import Timestamp
from streaming.drivers import failures
from tests.simulation import drivers
from tests.simulation.chance import RETENTION
from tests.simulation.mutants import mutant
from tests.simulation.planting import Patches

EXPIRY = (RETENTION,)
Earliest = Callable[[], Mapping[int, int]]


@mutant("R29", "offsets that retention took count as missed although the build had read them", faults=EXPIRY)
def miss_what_was_read(patches: Patches) -> None:
    def lost(build: Any, facts: Any) -> str:
        return str(_lost(msgspec.structs.replace(build, backfill_timestamp=Timestamp()), facts))

    _lost = patches.put(source, "_lost_offsets", lost)


@mutant("R29", "a build is told as one of everything that was ever written", faults=EXPIRY)
def hide_the_beginning(patches: Patches) -> None:
    def prepared(self: BuildAdmission, event: BuildPrepared) -> list[Any]:
        begun = dataclasses.replace(event.source, earliest=dict.fromkeys(event.source.earliest, 0))
        return list(_prepared(self, dataclasses.replace(event, source=begun)))

    _prepared = patches.put(BuildAdmission, "prepared", prepared)


@mutant("R29", "offsets that retention took count as missed although no build needs them", faults=EXPIRY)
def miss_what_is_not_needed(patches: Patches) -> None:
    def lost(build: BuildRecord, facts: Any) -> str:
        load = build.load_timestamp
        all_of_it = Timestamp.of(dict.fromkeys(load.places, 1 << 40), load.topic_id)
        return str(_lost(msgspec.structs.replace(build, load_timestamp=all_of_it), facts))

    _lost = patches.put(source, "_lost_offsets", lost)


@mutant("R29", "where records are gone a build begins two later", faults=EXPIRY)
def begin_behind_the_beginning(patches: Patches) -> None:
    def later(build: BuildRecord, keyspace: Any, status: Any, earliest: Earliest) -> None:
        def begin() -> dict[int, int]:
            return {partition: first and first + 2 for partition, first in earliest().items()}

        _take_up(build, keyspace, status, begin)

    _take_up = patches.put(drivers, "take_up", later)


@mutant("R29", "the coordinator does not look whether what a build needs is gone", faults=EXPIRY)
def pass_what_is_gone(patches: Patches) -> None:
    patches.put(source, "_lost_offsets", lambda build, facts: "")


@mutant("R29", "a driver is started again although what it must read is gone", faults=EXPIRY)
def try_again_what_is_gone(patches: Patches) -> None:
    left = tuple(one for one in failures._KNOWN if one[1] != "offsets-lost")
    patches.put(failures, "_KNOWN", left)
