"""How handlers reach the leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from coordinator.leader import Leader
from coordinator.process.service import CoordinatorService
from coordinator.statements.commands import CommandResult, Commands
from keytide.errors import RetryableError

_T = TypeVar("_T")


class LeaderAccess:
    """What handlers share: looking and changing through the control loop. Who may do which was decided before
    (`api._needs`)."""

    def __init__(self, service: CoordinatorService) -> None:
        self.service = service
        self._limit = float(service.settings.coordinator.request_timeout_s)

    async def look(self, at: Callable[[Leader, int], _T]) -> _T:
        """What `at` sees of the leader."""
        return await self._answer(self.service.ask(at))

    async def change(self, command: Callable[[Commands, int], CommandResult]) -> CommandResult:
        """What `command` did, committed."""
        return await self._answer(self.service.change(command))

    async def _answer(self, future: Future[_T]) -> _T:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._limit)
        except TimeoutError as error:
            raise RetryableError(
                f"no confirmation within {self._limit:.0f} s; a change may still take effect",
                next_step="look whether it has, and see whether Kafka is well: `keytide doctor`",
            ) from error
