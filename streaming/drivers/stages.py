"""The tasks of a driver's work, run by Spark or in the driver's own process: the same functions over Arrow
batches (`streaming.stages.tasks`), and the same rows come back.

Theory of operation
===================
Spark takes some seconds to start, and a good deal of processor time; a source with few records is read,
projected and sent within them. So small work is run by `LocalStages`, one task after the other, in the
caller's thread. What a task is told, does and sends is the same; a shuffle is kept in memory, and given up
when it becomes larger than it may be (`OutOfRoomError`): Spark's goes to disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import pyarrow as pa

from keytide.errors import RetryableError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW_BYTES: Final = 1024
"""That a row takes beside what is in it, about."""
PIECE_ROWS: Final = 16
"""That a task of the second stage gets at once: blocks of up to a megabyte."""

StageTask = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Rows to rows: those of one task."""
Rows = Iterable[Mapping[str, Any]]
"""What comes back to the driver."""


class OutOfRoomError(RetryableError):
    """Work that is done without Spark has become larger than that is for."""

    problem_type = "out-of-room"


class Shuffle(NamedTuple):
    """Two stages with a shuffle between them.

    Attributes:
        first, second: their tasks; those of both give rows `row`, whose column `route` says which task of the
            second stage gets them (`streaming.core.micro_batches.exact_routes`).
        routes: how many tasks the second has.
        order: columns by which each gets its rows sorted, ascending.
    """

    first: StageTask
    second: StageTask
    row: str
    routes: int
    order: tuple[str, ...]


class Stages(Protocol):
    """Runs tasks that are told by the numbers in the first column of their rows what they do."""

    def run(self, numbers: int, task: StageTask, row: str, tasks: int = 0) -> Rows:
        """The rows `row` that tasks make of the numbers below `numbers`.

        Args:
            tasks: that share them; 0 for one to each.
        """
        ...

    def shuffle(self, numbers: int, shuffle: Shuffle) -> Rows:
        """The rows that the second stage makes of what the first makes of the numbers below `numbers`, each
        in a task of its own."""
        ...


class SparkStages:
    """By Spark."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def run(self, numbers: int, task: StageTask, row: str, tasks: int = 0) -> Rows:
        frame: Any = self._numbers(numbers, tasks)
        return self.collected(frame, task, row)

    def shuffle(self, numbers: int, shuffle: Shuffle) -> Rows:
        return self.shuffled(self._numbers(numbers, numbers), shuffle)

    def _numbers(self, numbers: int, tasks: int) -> DataFrame:
        return self._session.range(0, numbers, 1, max(1, tasks or numbers))

    @staticmethod
    def collected(rows: DataFrame, task: Any, row: str) -> Rows:
        """What tasks make of the rows of any table."""
        found: Any = rows.mapInArrow(task, row).collect()
        return found  # type: ignore[no-any-return]

    @staticmethod
    def shuffled(rows: DataFrame, shuffle: Shuffle) -> Rows:
        """What both stages make of the rows of any table."""
        first: Any = shuffle.first
        second: Any = shuffle.second
        found: Any = (
            rows.mapInArrow(first, shuffle.row)
            .repartition(shuffle.routes, "route")
            .sortWithinPartitions(*shuffle.order)
            .mapInArrow(second, shuffle.row)
            .collect()
        )
        return found  # type: ignore[no-any-return]


class LocalStages:
    """In the caller's thread.

    Args:
        heed: called before each task, and with each batch of rows; what it raises ends the work.
        most_bytes: that a shuffle may hold; 0 for any.
    """

    def __init__(self, heed: Callable[[], None], most_bytes: int = 0) -> None:
        self._heed = heed
        self._most_bytes = most_bytes

    def run(self, numbers: int, task: StageTask, row: str, tasks: int = 0) -> Rows:
        for batch in self._made(numbers, task):
            yield from batch.to_pylist()

    def shuffle(self, numbers: int, shuffle: Shuffle) -> Rows:
        """Raises OutOfRoomError: it holds more than it may."""
        held: dict[int, list[dict[str, Any]]] = {}
        try:
            schema = self._hold(numbers, shuffle, held)
            for route in sorted(held):
                rows = held.pop(route)
                rows.sort(key=itemgetter(*shuffle.order))  # (no body is copied for it)
                for batch in shuffle.second(self._in_pieces(rows, schema)):
                    self._heed()
                    yield from batch.to_pylist()
        finally:
            held.clear()  # an error keeps what its frames hold

    def _hold(
        self, numbers: int, shuffle: Shuffle, held: dict[int, list[dict[str, Any]]]
    ) -> pa.Schema | None:
        """Keep the rows of the first stage, by route; their schema, None when there are none."""
        size, schema = 0, None
        for batch in self._made(numbers, shuffle.first):
            schema = batch.schema
            size += batch.nbytes + ROW_BYTES * batch.num_rows
            if 0 < self._most_bytes < size:
                raise OutOfRoomError(f"a shuffle without Spark holds more than {self._most_bytes} bytes")
            for row in batch.to_pylist():
                held.setdefault(row["route"], []).append(row)
        return schema

    def _in_pieces(self, rows: list[dict[str, Any]], schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        """The same as batches; what was given is let go of."""
        rows.reverse()
        while rows:
            self._heed()
            piece = [rows.pop() for _ in range(min(PIECE_ROWS, len(rows)))]
            yield pa.RecordBatch.from_pylist(piece, schema=schema)

    def _made(self, numbers: int, task: StageTask) -> Iterator[pa.RecordBatch]:
        for number in range(numbers):
            self._heed()
            for batch in task([pa.RecordBatch.from_arrays([pa.array([number])], names=["id"])]):
                yield batch
                self._heed()
