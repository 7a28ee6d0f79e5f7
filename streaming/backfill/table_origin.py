"""The table that a build may begin with: read by Spark, projected like records, sent as micro-batch 0.

Theory of operation
===================
`read_table` makes any table into two columns, id and document, as bytes. Tasks give each row a version of
its own, (`TABLE_PARTITION`, task << 32 | row): it is older than every record, so whatever the log says of the
same document later replaces or removes it, in whatever partition. From there on rows are records: the same
projection, shuffle and chunks. What cannot be indexed is in the skip ledger under that version.

Every document must come once: which of two rows is the newer one nobody can say. Each share hands on the
hashes of its ids, as records do; hashes that come twice are looked up by id, and if ids are equal the build
fails and names them.

A driver that dies reads the table again, under the same micro-batch number; slices that had it skip it
(R22). So a table that changes between the two may be in one slice as it was and in another as it is: nobody
notices.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from keytide.catalog.table_origin import TableOrigin
from keytide.errors import CallerError
from keytide.model.timestamp import TABLE_PARTITION, Place, Timestamp
from keytide.wire.columns import hashes_of
from projector.core.projection import SourceBatch
from streaming.core import micro_batches as core
from streaming.core.runs import items
from streaming.core.versions import Hashes, contained, hash_ranges, repeated
from streaming.drivers.rate_gate import TaskClient
from streaming.drivers.stages import SparkStages
from streaming.stages.tasks import HASHES, batch_shuffle, project_extent, row, settled
from streaming.stages.work import BatchWork

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NAMED_DUPLICATES = 10
"""So many ids are named that a table has more than once."""
_ROW_BITS = 32
_TEXT = ("string", "binary")
_NUMBERS = ("tinyint", "smallint", "int", "bigint")
_NESTED = ("struct", "map")


class TableError(CallerError):
    """The table that a build was to begin with cannot be read, or is not what was said."""

    problem_type = "origin-unusable"


def read_table(session: SparkSession, origin: TableOrigin, options: Mapping[str, str]) -> DataFrame:
    """The table as rows of (key binary, value binary): document id and JSON document.

    Args:
        options: of the reader, beside the origin's own: those that are secret.

    Raises:
        TableError: there is no such table or column, no reader of that name, or ids or documents are of a
            type that they cannot be of.
    """
    from pyspark.errors import AnalysisException, IllegalArgumentException

    reader = session.read.format(origin.format).options(**{**origin.options, **options})
    try:
        table = reader.load(origin.path) if origin.path else reader.load()
    except (AnalysisException, IllegalArgumentException) as error:
        raise TableError(
            f"the table cannot be read: {str(error).splitlines()[0][:500]}",
            next_step="see format, path and options of the origin; jars of readers go to build.jars",
        ) from error
    key, value = _id_column(table, origin), _document_column(table, origin)
    return table.select(key.alias("key"), value.alias("value"))


def _id_column(table: DataFrame, origin: TableOrigin) -> Column:
    kind = _type_of(table, origin.id_column)
    if kind not in _TEXT + _NUMBERS:
        raise TableError(
            f"column {origin.id_column} is of type {kind}: an id is a string, bytes or a whole number",
            next_step="name another id_column, or cast it in a view",
        )
    column = _column(table, origin.id_column)
    return column if kind == "binary" else column.cast("string").cast("binary")


def _document_column(table: DataFrame, origin: TableOrigin) -> Column:
    """The documents; a row without one becomes the JSON null, which is a line in the skip ledger."""
    from pyspark.sql import functions

    as_json = {"ignoreNullFields": "false"}
    if origin.document_column is None:
        fields = [_column(table, name) for name in table.columns if name != origin.id_column]
        if not fields:
            raise TableError(
                f"the table has no column but {origin.id_column}: there is nothing to make documents of",
                next_step="name the document_column, or take a table with the documents' fields",
            )
        return functions.to_json(functions.struct(*fields), as_json).cast("binary")
    kind = _type_of(table, origin.document_column)
    column = _column(table, origin.document_column)
    if kind in _NESTED:
        column = functions.to_json(column, as_json)
    elif kind not in _TEXT:
        raise TableError(
            f"column {origin.document_column} is of type {kind}: a document is JSON text, bytes, or a struct",
            next_step="name another document_column, or none to make documents of all columns",
        )
    return functions.coalesce(column.cast("binary"), functions.lit("null").cast("binary"))


def _column(table: DataFrame, name: str) -> Column:
    quoted = name.replace("`", "``")
    return table[f"`{quoted}`"]


def _type_of(table: DataFrame, name: str) -> str:
    """The type of a column, nested ones without what is in them.

    Raises:
        TableError: there is no such column.
    """
    found = [kind for column, kind in table.dtypes if column == name]
    if len(found) != 1:
        have = ", ".join(table.columns[:20])
        count = "no column" if not found else "more than one column"
        raise TableError(
            f"the table has {count} {name}; it has {have}",
            next_step="name id_column and document_column as the table does",
        )
    return found[0].split("<", 1)[0]


def begins_at(origin: TableOrigin) -> Timestamp:
    """Where reading the log begins, with the leader epochs that the log had there."""
    places = {p: Place(offset, origin.epochs.get(p, -1)) for p, offset in sorted(origin.offsets.items())}
    return Timestamp(places, origin.topic_id)


def starting_offsets(topic: str, offsets: Mapping[int, int]) -> str:
    """Where reading the log begins, as Spark's Kafka source takes it."""
    return json.dumps({topic: {str(p): offset for p, offset in sorted(offsets.items())}})


# --- one micro-batch ----------------------------------------------------------------------------------------


def run_table(table: DataFrame, work: BatchWork, client: TaskClient | None) -> core.SettledBatch:
    """Read, project and send the table: all chunks of micro-batch 0.

    Raises:
        TableError: it has rows with the same id.
    """
    shuffle = batch_shuffle(work, functools.partial(project_rows, work, client))
    outcome = settled(work, SparkStages.shuffled(table, shuffle), table.rdd.getNumPartitions())
    if outcome.foreign:
        _refuse_duplicates(table, outcome.foreign)
    return outcome


def _refuse_duplicates(table: DataFrame, hashes: bytes) -> None:
    """Fail if ids with these hashes come more than once (else two ids have one hash)."""
    wanted = np.sort(np.frombuffer(hashes, np.uint64))
    find: Any = functools.partial(find_ids, wanted.tobytes())
    again = (
        table.mapInArrow(find, "id binary")
        .groupBy("id")
        .count()
        .where("count > 1")
        .orderBy("id")
        .limit(NAMED_DUPLICATES + 1)
        .collect()
    )
    if not again:
        return
    names = [bytes(row["id"]).decode(errors="backslashreplace") for row in again]
    more = " and more" if len(names) > NAMED_DUPLICATES else ""
    raise TableError(
        f"the table has more than one row for {', '.join(names[:NAMED_DUPLICATES])}{more}: which of them is "
        "the newest cannot be told",
        next_step="keep one row for each id (a view, or a query), and build again",
    )


# --- in Spark's Python workers ------------------------------------------------------------------------------


def project_rows(
    work: BatchWork, client: TaskClient | None, rows: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Rows of one share to rows of the shuffle, as `streaming.stages.tasks.project_extent` makes them of
    records; and once more the hashes of ids that this share has more than once."""
    from pyspark import TaskContext

    context = TaskContext.get()
    seen: list[Hashes] = []
    records = as_records(context.partitionId() if context else 0, rows, seen)
    yield from project_extent(work, client, records)
    again = hash_ranges(repeated(seen), len(work.routes))
    yield from (
        row(route, -1, HASHES, b"", some.tobytes())
        for route, some in zip(work.routes, again, strict=True)
        if len(some)
    )


def as_records(share: int, rows: Iterable[pa.RecordBatch], seen: list[Hashes]) -> Iterator[SourceBatch]:
    """Rows as records: each with a version of its own, at time 0.

    Args:
        share: number of the task.
        rows: of (key, value).
        seen: takes the hashes of all ids.
    """
    start = share << _ROW_BITS
    for batch in rows:
        ids, end = items(batch.column("key")), start + batch.num_rows
        present = [item for item in ids if item is not None]
        seen.append(hashes_of(present, len(present)))
        yield SourceBatch(
            partition=TABLE_PARTITION,
            epoch=-1,
            start=start,
            end=end,
            offsets=np.arange(start, end, dtype=np.int64),
            ids=ids,
            values=items(batch.column("value")),
            times=np.zeros(batch.num_rows, np.int64),
        )
        start = end


def find_ids(wanted: bytes, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The ids of one share that have the given hashes (u64[n], ascending), repeated as they are."""
    hashes = np.frombuffer(wanted, np.uint64)
    for batch in rows:
        ids = [item for item in items(batch.column("key")) if item is not None]
        found = np.flatnonzero(contained(hashes_of(ids, len(ids)), hashes)).tolist()
        yield pa.RecordBatch.from_arrays([pa.array([ids[row] for row in found], pa.binary())], names=["id"])
