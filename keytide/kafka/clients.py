"""Kafka's clients: each used by one thread, and none destroyed while a request of it is open.

Theory of operation: librdkafka calls back from threads of its own, into objects that belong to a client. Two
threads that use one client, or an admin client whose last reference goes while Kafka still owes it an answer,
end in a place that no Python code shows: the process gets SIGSEGV. So all clients of the product are made
here (a test of the style sees to it), and these two rules are checked:

* A client belongs to the thread that uses it first. Another one may have it when that thread has ended, or
  has given it away (`hand_over`); else this is a bug, told by the invariant OneThread.
* An admin client is closed by whoever made it (`with admin(...) as client`), which waits for its answers;
  every request has a time limit. One that is dropped without that is kept until the process ends, and told.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from typing import Any, Final, NoReturn, Self, TypeVar

import confluent_kafka
import confluent_kafka.admin

from keytide.errors import invariant

log = logging.getLogger(__name__)

CLOSE_S: Final = 30.0
"""For the answers that are open when an admin client is closed: no request of ours may take longer."""

BROKER_STATISTICS: Final[dict[str, Any]] = {"statistics_interval_ms": 5_000}
"""For `has_broker`. Only for a client that is polled all the time: librdkafka keeps what nobody takes."""
_UP: Final = '"state":"UP"'
"""Of a broker (a consumer group's state is written in small letters)."""

_kept: Final[list[AdminClient]] = []
"""Admin clients that cannot be destroyed: answers are owed to them."""

_C = TypeVar("_C", bound="_OneThread")


def try_another(in_vain: int, first: int) -> bool:
    """Whether another client is to ask, because it may be this one's fault that nobody answers: it can lose
    all its brokers for good. But each leaves threads behind until Python looks for cycles, so ever more
    seldom.

    Args:
        in_vain: questions without an answer by now, in a row.
        first: after how many another one asks, a power of two; then after twice as many each time.
    """
    return in_vain >= first and in_vain & (in_vain - 1) == 0


class _OneThread:
    """What belongs to one thread at a time."""

    _owner: threading.Thread | None = None

    def __bool__(self) -> bool:
        """Of librdkafka's clients the length is that of their queue: an idle one would be false."""
        return True

    def hand_over(self) -> None:
        """Give it away: the next thread that uses it has it."""
        self._own("hand_over")
        self._owner = None

    def _own(self, what: str) -> None:
        here = threading.current_thread()
        owner = self._owner
        if owner is not here:
            invariant(
                owner is None or not owner.is_alive(),
                "OneThread",
                lambda: (
                    f"{type(self).__name__}.{what} was called in thread {here.name}, while the client is "
                    f"thread {owner.name if owner else None}'s"
                ),
            )
            self._owner = here


def _guarded(kind: type[_C]) -> type[_C]:
    """Have every public method of a client look who calls it."""
    for name in dir(kind):
        method = getattr(kind, name)
        if not name.startswith("_") and callable(method) and name not in vars(kind) and name != "hand_over":
            setattr(kind, name, _looking(name, method))
    return kind


def _looking(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: _OneThread, *arguments: Any, **options: Any) -> Any:
        self._own(name)
        result = method(self, *arguments, **options)
        if isinstance(self, AdminClient):
            self._asked(result)
        return result

    return call


class _Brokers:
    """What a client's statistics say of its brokers."""

    up = True

    def heard(self, statistics: str) -> None:
        self.up = _UP in statistics


@_guarded
class Consumer(_OneThread, confluent_kafka.Consumer):
    """A consumer of one thread."""

    def __init__(self, config: dict[str, Any], **options: Any) -> None:
        self._brokers = _Brokers()
        super().__init__(_telling(config, self._brokers), **options)

    @property
    def has_broker(self) -> bool:
        """As `Producer.has_broker`."""
        return self._brokers.up


@_guarded
class Producer(_OneThread, confluent_kafka.Producer):
    """A producer of one thread."""

    def __init__(self, config: dict[str, Any], **options: Any) -> None:
        self._brokers = _Brokers()
        super().__init__(_telling(config, self._brokers), **options)

    @property
    def has_broker(self) -> bool:
        """Whether a connection to a broker is open, by the newest statistics that it was polled for; true of
        a client without `BROKER_STATISTICS`."""
        return self._brokers.up


def _telling(config: dict[str, Any], brokers: _Brokers) -> dict[str, Any]:
    """The configuration of a client that tells of its brokers, if it has statistics."""
    return {**config, "stats_cb": brokers.heard} if config.get("statistics.interval.ms") else config


@_guarded
class AdminClient(_OneThread, confluent_kafka.admin.AdminClient):
    """An admin client of one thread. Close it."""

    _closed = False

    def __init__(self, config: dict[str, Any], **options: Any) -> None:
        self._requests: list[Future[Any]] = []
        super().__init__(config, **options)

    def describe_cluster(self, *_: Any, **__: Any) -> NoReturn:
        """Not to be used: when Kafka says that it has no broker (one that stood still is fenced until the
        controller hears of it again), librdkafka 2.16 fails an assertion, which ends the process."""
        raise NotImplementedError("ask with list_topics")

    def _asked(self, result: object) -> None:
        """Remember what Kafka owes."""
        answers: Iterable[object] = result.values() if isinstance(result, dict) else (result,)
        self._requests = [one for one in self._requests if not one.done()]
        self._requests += [one for one in answers if isinstance(one, Future)]

    def close(self) -> None:
        """Wait for the answers that are still open; it must not be used again."""
        self._own("close")
        self._closed = True
        _, late = wait(self._requests, CLOSE_S)
        if late:
            log.error("%d requests to Kafka were not answered at all: their client is kept", len(late))
            _kept.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed and self._owner is not None and not sys.is_finalizing():
            log.error("an admin client of thread %s was dropped without being closed", self._owner.name)
            _kept.append(self)
