"""Planted faults where the source keeps records for a time only (R29). Importing this adds them to
`mutants.MUTANTS`."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from coordinator.builds.admission import BuildAdmission
from coordinator.core.events import BuildPrepared
from coordinator.sources import source_checks as source
from keytide.model.timestamp import Timestamp
from tests.simulation.chance import RETENTION
from tests.simulation.drivers import SimDriver
from tests.simulation.mutants import mutant
from tests.simulation.planting import Patches

EXPIRY = (RETENTION,)


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


@mutant("R29", "a build reads on behind what retention took before it had read it", faults=EXPIRY)
def read_on_behind_what_is_gone(patches: Patches) -> None:
    patches.put(source, "_lost_offsets", lambda build, facts: "")
    patches.put(SimDriver, "check_kept", lambda self, covered: None)
