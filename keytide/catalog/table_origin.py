"""Where a build may take its initial state from, in place of the log's beginning: a table that Spark reads,
with the source's offsets at which it was taken (docs/initial-state.md)."""

from __future__ import annotations

import msgspec


class TableOrigin(msgspec.Struct, frozen=True):
    """A table that a build begins with; part of its record (`keytide.catalog.records`).

    Attributes:
        format: of Spark's reader: `parquet`, `json`, `orc`, `csv`, `jdbc`, or another one that is installed.
        offsets: where every source partition stood when the table was taken: it holds the newest version of
            every document below them. Reading goes on from there.
        path: for readers of files; "" for others.
        options: of Spark's reader, none of them secret.
        id_column: holds the document ids.
        document_column: holds the documents; None: all other columns are the document's fields.
        taken_at: when the offsets were noted, milliseconds; 0 when not said. On a compacted topic a deletion
            after that may have been cleaned away once `delete.retention.ms` have passed (R26).
        topic_id, incarnation: of the keyspace when the offsets were given: later rollbacks are held against
            them.
        epochs: leader epochs of the records below the offsets, as the log told them then.
    """

    format: str
    offsets: dict[int, int]
    path: str = ""
    options: dict[str, str] = {}
    id_column: str = "id"
    document_column: str | None = None
    taken_at: int = 0
    topic_id: str = ""
    incarnation: int = 0
    epochs: dict[int, int] = {}
