"""Planted faults in repairs. All must be seen."""

from __future__ import annotations

from typing import Any

from indexer.slice.corrections import Correcting
from keytide.model.timestamp import Timestamp
from tests.simulation.mutants import mutant
from tests.simulation.planting import Patches
from tests.simulation.repairs import Repairs


@mutant("repair", "a slice corrects what it has heard of since, too")
def correct_what_was_heard_since(patches: Patches) -> None:
    def heard_between(self: Correcting, low: Timestamp, high: Timestamp) -> Any:
        return _heard_between(self, low, low)

    _heard_between = patches.put(Correcting, "_heard_between", heard_between)


@mutant("repair", "a slice corrects before it has applied what the correction is of")
def correct_ahead(patches: Patches) -> None:
    def following(self: Correcting, applied: Timestamp) -> Any:
        ahead = applied.merge_max(self._pending[0].timestamp) if self._pending else applied
        return _following(self, ahead)

    _following = patches.put(Correcting, "next", following)


@mutant("repair", "the truth is of a timestamp from before the slices watched, and they miss nothing")
def look_before_the_watch(patches: Patches) -> None:
    patches.put(Repairs, "enough", lambda self, timestamp, job: True)
    patches.put(Correcting, "_has_read", lambda self, low, high: True)
