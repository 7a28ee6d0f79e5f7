"""Planted faults in builds of RANGE indexes, and in reading them in order."""

from __future__ import annotations

from typing import Any

from coordinator.builds import sampling
from indexer.scan.gather import gather
from tests.simulation.mutants import mutant
from tests.simulation.planting import Patches


@mutant("ranges", "a build begins without the splits that were found", pipeline=True)
def forget_the_splits(patches: Patches) -> None:
    patches.put(sampling.SplitSampling, "splits", lambda self, record, index: ())


@mutant("ranges", "nobody looks after the driver of a sample", faults=("driver-crash",))
def leave_samples_alone(patches: Patches) -> None:
    patches.put(sampling.SplitSampling, "exited", lambda self, event: [])


@mutant("ranges", "slices are read in the wrong order")
def read_the_last_first(patches: Patches) -> None:
    def in_order(target: Any, reverse: bool) -> list[int]:
        numbers: list[int] = _in_order(target, not reverse)
        return numbers

    _in_order = patches.put(gather, "_in_order", in_order)
