"""Read your own writes: what a producer was told of its records, as what a scan must see at least.

    writes = Writes()
    producer.produce("users", key, value, on_delivery=writes.on_delivery)  # confluent-kafka
    producer.flush()
    client.scan("by_city", equals=["Boston"], at_least=writes)

Theory of operation
===================
A record at offset n of a partition is in a snapshot whose next offset there is at least n + 1. `Writes`
keeps the largest next offset of each partition, and the leader epoch where the producer's client tells it:
with that a scan learns at once, by `HistoryChangedError`, when the source has lost the record.

Neither client is imported: whatever has `topic`, `partition` and `offset`, as methods (confluent-kafka's
`Message`) or as attributes (kafka-python's and aiokafka's `RecordMetadata`), is a report. Reports may come
from any thread.
"""

from __future__ import annotations

import threading
from typing import Any, Final, Self

from keytide.client.protocol.answers import MisuseError
from keytide.errors import CallerError

_FLUSH_FIRST: Final = "call the producer's flush() and look at the reports before you scan"


class UndeliveredError(CallerError):
    """A record was not written, so no scan can see it."""

    problem_type = "not-delivered"


class Writes:
    """The records of one topic that a producer was told to be written.

    Args:
        topic: their topic; that of the first report if None.

    Use it as `at_least` of any request. Give `on_delivery` to confluent-kafka's `produce`; give
    kafka-python's futures, or the `RecordMetadata` that they bring, to `delivered`:

    >>> writes = Writes("users")
    >>> writes.delivered(RecordMetadata("users", 0, 41)).at_least()
    {'0': 42}
    """

    def __init__(self, topic: str | None = None) -> None:
        self._topic = topic
        self._lock = threading.Lock()
        self._places: dict[int, tuple[int, int]] = {}
        self._waiting = 0
        self._failed = 0
        self._failure: BaseException | str | None = None
        self._wrong: CallerError | None = None

    def __repr__(self) -> str:
        places = {partition: place[0] for partition, place in sorted(self._places.items())}
        return f"Writes({self._topic!r}, {places}, failed={self._failed}, waiting={self._waiting})"

    def __bool__(self) -> bool:
        """Whether there is anything to be seen."""
        return bool(self._places)

    @property
    def topic(self) -> str | None:
        """The records' topic, None before the first report."""
        return self._topic

    @property
    def failed(self) -> int:
        """How many records were not written."""
        return self._failed

    @property
    def waiting(self) -> int:
        """How many of the given futures are not done."""
        return self._waiting

    def on_delivery(self, error: Any, message: Any) -> None:
        """For confluent-kafka's `on_delivery`; raises nothing, since a producer's thread calls it: what went
        wrong is raised by `at_least`."""
        try:
            if error is not None:
                self._not_written(str(error))
            else:
                self.delivered(message)
        except UndeliveredError:
            return  # counted
        except CallerError as wrong:
            with self._lock:
                self._wrong = self._wrong or wrong

    def delivered(self, report: Any) -> Self:
        """Take a report: a `Message`, a `RecordMetadata`, or a future of either (which may be done later).

        Raises:
            UndeliveredError: the report is of a record that was not written.
            MisuseError: it is of another topic, has no offset (`acks=0`), or is no report.
        """
        if _future_like(report):
            self._future(report)
            return self
        topic, partition, offset = (_member(report, name) for name in ("topic", "partition", "offset"))
        if not isinstance(topic, str) or not isinstance(partition, int):
            raise MisuseError(
                f"{report!r} is no delivery report: it names no topic and partition",
                next_step="give what the producer's callback or future brings",
            )
        error = _member(report, "error")
        if error is not None:
            self._not_written(str(error))
            raise UndeliveredError(f"a record was not written: {error}", next_step="write it again")
        if not isinstance(offset, int) or offset < 0:
            raise MisuseError(
                "the delivery report has no offset: the producer did not wait for the broker",
                next_step="set the producer's `acks` to 1 or all",
            )
        epoch = _member(report, "leader_epoch")
        self._add(topic, partition, offset + 1, epoch if isinstance(epoch, int) and epoch >= 0 else -1)
        return self

    def forget_failed(self) -> None:
        """Go on without the records that were not written."""
        with self._lock:
            self._failed, self._failure = 0, None

    def clear(self) -> None:
        """Begin anew, with the same topic. Futures that are not done yet still count when they are."""
        self.forget_failed()
        with self._lock:
            self._places.clear()
            self._wrong = None

    def at_least(self) -> dict[str, Any]:
        """The demand: partition -> next offset, or that and the leader epoch.

        Raises:
            UndeliveredError: a record was not written (see `forget_failed`).
            MisuseError: a future is not done, or a report was of another topic or had no offset.
        """
        with self._lock:
            if self._wrong is not None:
                raise self._wrong
            if self._failed:
                cause = self._failure if isinstance(self._failure, BaseException) else None
                raise UndeliveredError(
                    f"{self._failed} records were not written, the first one because of: {self._failure}",
                    next_step="write them again, or `forget_failed()` to go on without them",
                ) from cause
            if self._waiting:
                raise MisuseError(
                    f"{self._waiting} records are not acknowledged yet",
                    problem_type="not-acknowledged-yet",
                    next_step=_FLUSH_FIRST,
                )
            return {
                str(partition): offset if epoch < 0 else {"offset": offset, "epoch": epoch}
                for partition, (offset, epoch) in sorted(self._places.items())
            }

    def _add(self, topic: str, partition: int, offset: int, epoch: int) -> None:
        with self._lock:
            if self._topic is None:
                self._topic = topic
            if self._topic != topic:
                raise MisuseError(
                    f"the report is of topic {topic!r}, and these are the writes to {self._topic!r}",
                    problem_type="wrong-topic",
                    next_step="collect the writes of each topic in a `Writes` of its own",
                )
            self._places[partition] = max(self._places.get(partition, (0, -1)), (offset, epoch))

    def _not_written(self, why: BaseException | str) -> None:
        with self._lock:
            self._failed += 1
            if self._failure is None:
                self._failure = why

    # --- futures --------------------------------------------------------------

    def _future(self, future: Any) -> None:
        with self._lock:
            self._waiting += 1
        if hasattr(future, "add_done_callback"):  # asyncio's and concurrent.futures'
            future.add_done_callback(self._done)
        else:  # kafka-python's
            future.add_callback(self._brought)
            future.add_errback(self._broke)

    def _done(self, future: Any) -> None:
        if future.cancelled():
            self._broke("the future was cancelled")
        elif (error := future.exception()) is not None:
            self._broke(error)
        else:
            self._brought(future.result())

    def _brought(self, report: Any) -> None:
        try:
            self.on_delivery(None, report)
        finally:
            self._one_less()

    def _broke(self, error: BaseException | str) -> None:
        self._not_written(error)
        self._one_less()

    def _one_less(self) -> None:
        with self._lock:
            self._waiting -= 1


def _future_like(report: Any) -> bool:
    return hasattr(report, "add_done_callback") or (
        hasattr(report, "add_callback") and hasattr(report, "add_errback")
    )


def _member(report: Any, name: str) -> Any:
    """A report's member, which is a method in confluent-kafka."""
    value = getattr(report, name, None)
    try:
        return value() if callable(value) else value
    except TypeError:  # a method of something else, which wants arguments
        return None
