"""How handlers reach the leader."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Final, TypeVar

from coordinator.leader import Leader
from coordinator.process.service import CoordinatorService
from coordinator.statements.commands import CommandResult, Commands
from keytide.errors import RetryableError
from keytide.kafka.admin import KafkaUnavailableError

_T = TypeVar("_T")

LOOK_S: Final = 1.0
"""How often it is seen, while a request waits for Kafka, whether that answers."""
SILENT_MS: Final = 5_000
"""A Kafka that has answered nothing to a request for this long is waited for no longer: whoever asks (the
command: ten seconds) would give up, and take the coordinator for silent. Elections of its leaders take less,
and so do clients to come back to a broker that was away. How long it was silent before does not count: it may
be back since, and only what it is asked now tells."""


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
        """What `command` did, committed.

        Raises:
            KafkaUnavailableError: Kafka does not answer.
            RetryableError: nor does the control loop.
        """
        return await self._while_kafka_answers(
            self._answer(self.service.change(command)),
            "the change may still take effect",
            "look whether it has once Kafka is back",
        )

    async def of_kafka(self, ask: Callable[..., _T], *arguments: object) -> _T:
        """What Kafka is asked for before something changes; in a thread.

        Raises:
            KafkaUnavailableError: it does not answer.
        """
        return await self._while_kafka_answers(
            asyncio.to_thread(ask, *arguments), "nothing was changed", "try again once Kafka is back"
        )

    async def _while_kafka_answers(self, answer: Awaitable[_T], so: str, then: str) -> _T:
        task, asked = asyncio.ensure_future(answer), time.monotonic()
        try:
            while not (await asyncio.wait({task}, timeout=LOOK_S))[0]:
                silence = await self.look(lambda leader, _: leader.stability.failure_detector.kafka_silence)
                if min(silence, (time.monotonic() - asked) * 1000) >= SILENT_MS:
                    raise KafkaUnavailableError(
                        f"Kafka has answered nothing for {silence / 1000:.0f} s; {so}",
                        next_step=f"see whether its brokers run (`keytide doctor`); {then}",
                    )
            return task.result()
        finally:
            task.cancel()

    async def _answer(self, future: Future[_T]) -> _T:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._limit)
        except TimeoutError as error:
            raise RetryableError(
                f"no confirmation within {self._limit:.0f} s; a change may still take effect",
                next_step="look whether it has, and see whether Kafka is well: `keytide doctor`",
            ) from error
