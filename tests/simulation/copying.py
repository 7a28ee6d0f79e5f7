"""Copies of slices on their way from node to node: the real ends (`indexer.copying`), a chunk at a time.

A node asks for one chunk of each of its copies now and then. The request or its answer may be lost, and an
answer may be that to an earlier request; who is silent answers nothing. Chunks are a row each, so that
folds, steps back, crashes and other sources come in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from indexer.copying import source as source_module
from indexer.copying.messages import GenerationGoneError
from indexer.copying.source import CopySources
from indexer.copying.target import CopyTarget
from indexer.hosting.filling import FillProgress
from indexer.hosting.slice_runner import SliceKey
from indexer.store.interface import StoreDamagedError, StoreExport
from keytide.catalog.copies import CopyRecord
from keytide.errors import RetryableError
from tests.memory_store.copying import MemorySliceFilling
from tests.memory_store.store import MemorySliceStore

if TYPE_CHECKING:
    from tests.simulation.nodes import SimNode, SlicePath
    from tests.simulation.world import World

CHUNK_BYTES = 1
"""A row."""
SLOW = 6
"""In the storm a node asks in one look out of so many: everybody else goes on between two chunks. (Where
copies move it asks in each, or few would get there.)"""
source_module.CHUNK_BYTES = CHUNK_BYTES  # type: ignore[misc]


class SimFiller:
    """`CopyFiller` of one life of a node, and what answers those who fill copies from it."""

    def __init__(self, world: World, node: SimNode) -> None:
        self._world = world
        self._node = node
        self._targets: dict[str, tuple[CopyRecord, CopyTarget]] = {}
        self._late: list[bytes] = []
        self.sources = CopySources(self._export, node.node.catalog, node.name)

    def begin(self, copy: CopyRecord, folder: SlicePath) -> None:
        filling = folder.folder.fillings[copy.index, copy.slice][1]
        self._targets[copy.id] = copy, CopyTarget(copy, filling)

    def look(self, id_: str) -> FillProgress:
        target = self._targets[id_][1]
        return FillProgress(target.rows, target.rows_total, "", target.done)

    def leave(self, id_: str) -> None:
        del self._targets[id_]

    def step(self) -> None:
        """One chunk for each now and then, or as many as there are once everything is calm."""
        world = self._world
        slow = 1 if world.plan.moves else SLOW
        if not self._targets or (world.storm and world.chance.below(slow)):
            return
        for copy, target in list(self._targets.values()):
            for _ in range(1 if world.storm else 1 << 10):
                if target.done or not self._chunk(copy, target):
                    break

    def _chunk(self, copy: CopyRecord, target: CopyTarget) -> bool:
        """Ask for one, and take the answer; whether anything came of it."""
        world = self._world
        source = world.nodes.get(copy.source)
        if source is None or source.silent_until > world.clock.now or world.fault("lost", 0.1):
            return False
        try:
            answer = source.filler.sources.answer(target.request(), source.now)
            world.mishaps.pass_by(self._node.name)
            if self._late and world.fault("duplicate", 0.1):
                answer = self._late[world.chance.below(len(self._late))]
            self._late = [*self._late[-3:], answer]
            world.mishaps.write("chunk")
            target.take(answer)
            world.mishaps.pass_by(self._node.name)
        except GenerationGoneError:
            world.seen["generation gone"] += 1
            target.gone()
        except (RetryableError, StoreDamagedError):
            return False
        world.seen["copied chunk"] += 1
        return True

    def _export(self, index: str, slice_number: int) -> StoreExport | None:
        runner = self._node.hosting.runners.get((index, slice_number))
        return runner.store.export() if runner is not None else None


def filled_store(filling: MemorySliceFilling) -> MemorySliceStore:
    """What a copy that is whole is, opened: it folds, and steps back, as the others do."""
    return MemorySliceStore.filled(filling, fold_age_ms=60, undo_folds=2)


class SimFillings:
    """What is on the disk of a node of copies that are not whole: id and rows of each."""

    def __init__(self) -> None:
        self._there: dict[SliceKey, tuple[str, MemorySliceFilling]] = {}

    def __getitem__(self, key: SliceKey) -> tuple[str, MemorySliceFilling]:
        return self._there[key]

    def begin(self, key: SliceKey, copy_id: str) -> None:
        """What there is of this copy stays, and nothing of another one."""
        if key not in self._there or self._there[key][0] != copy_id:
            self._there[key] = copy_id, MemorySliceFilling()

    def pop(self, key: SliceKey) -> tuple[str, MemorySliceFilling] | None:
        return self._there.pop(key, None)

    def keys(self) -> list[SliceKey]:
        return list(self._there)
