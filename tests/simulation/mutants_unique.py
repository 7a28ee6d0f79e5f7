"""Planted faults in what watches UNIQUE indexes. All must be seen."""

from __future__ import annotations

from typing import Any

from coordinator.unique.settlement import Settling
from indexer.unique.suspects import Suspects
from indexer.unique.watch import UniqueWatch
from tests.simulation.mutants import mutant
from tests.simulation.planting import Patches


@mutant("R35", "two documents with one key are told at once, without R35's wait")
def tell_at_once(patches: Patches) -> None:
    def numbered(self: Suspects, number: int, settled: int) -> None:
        _numbered(self, number, number)

    _numbered = patches.put(Suspects, "numbered", numbered)


@mutant("R35", "a suspicion is settled by ends that were sampled before it")
def settle_by_older_ends(patches: Patches) -> None:
    def by(self: Settling, content: Any) -> int:
        _by(self, content)
        return self._issued[-1][1] if self._issued else self.settled

    _by = patches.put(Settling, "by", by)


@mutant("R35", "what a restart leaves unknown is not looked for")
def never_sweep(patches: Patches) -> None:
    def begin(self: UniqueWatch, snapshot: Any) -> None:
        _begin(self, snapshot)
        if self._sweep is not None:
            self._sweep.close()

    _begin = patches.put(UniqueWatch, "begin", begin)
