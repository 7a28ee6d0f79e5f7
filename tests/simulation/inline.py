"""Long reads in a world without threads: done at once, by who asks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from indexer.scan.local.effort import ReadBudget, ReadThreads, ReadTurn
from indexer.scan.plan.waiting import Gone

ResultT = TypeVar("ResultT")


class InlineThreads(ReadThreads):
    """What a node has in the place of its threads. Reads of whole spatial indexes are long ones: each entry
    is looked at."""

    async def run(self, work: Callable[..., ResultT], *arguments: object) -> ResultT:
        return work(*arguments)

    def turn(
        self, work: Callable[[ReadBudget], ResultT], within_s: float | None, *, first: bool
    ) -> ReadTurn[ResultT]:
        done: Future[ResultT] = Future()
        try:
            done.set_result(work(ReadBudget()))
        except Exception as error:  # noqa: BLE001 - belongs to whoever asked
            done.set_exception(error)
        return _OverTurn(ReadBudget(), done)


class _OverTurn(ReadTurn[ResultT]):
    async def result(self, gone: Gone | None = None) -> ResultT:
        return self.done.result()
