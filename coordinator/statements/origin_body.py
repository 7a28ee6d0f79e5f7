"""A table to begin a build with, as a request names it: checked, and made a `TableOrigin`."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, Field

from coordinator.statements.origin_reach import Reach, check
from keytide.catalog.table_origin import TableOrigin
from keytide.errors import CallerError

_SECRET_NAME = re.compile(r"passw|secret|token|credential|access.?key|private.?key", re.I)
_SECRET_VALUE = re.compile(r"(?:passw\w{0,64}|secret|token)=|://[^/@\s:]++:[^/@\s]++@", re.I)


class OriginBody(BaseModel):
    """A table that Spark reads, in place of the log's beginning (docs/initial-state.md)."""

    model_config = ConfigDict(extra="forbid")

    format: str = Field(
        min_length=1, max_length=200, description="of Spark's reader", examples=["parquet", "json", "jdbc"]
    )
    path: str = Field("", max_length=4_000, description="file, folder or address, for readers that take one")
    options: dict[str, str] = Field(
        default_factory=dict, max_length=100, description="of Spark's reader; nothing secret"
    )
    id_column: str = Field("id", min_length=1, max_length=1_000, description="holds the document ids")
    document_column: str | None = Field(
        None,
        min_length=1,
        max_length=1_000,
        description="holds the documents; null: all other columns are the document's fields",
    )
    offsets: dict[int, int] = Field(
        min_length=1,
        description="partition -> next offset: the table holds everything below, and nothing is read there",
    )
    taken_at: int = Field(
        0, ge=0, description="when the offsets were noted, ms since the epoch; a compacted topic needs it"
    )
    topic_id: str = Field("", max_length=100, description="Kafka's id of the topic that it was taken of")

    def table(self, reach: Reach) -> TableOrigin:
        """The origin.

        Args:
            reach: what may be read.

        Raises:
            CallerError: an offset is negative, or an option or the path holds a secret.
            OriginRefusedError: it may not be read.
        """
        negative = [partition for partition, offset in sorted(self.offsets.items()) if offset < 0]
        if negative:
            raise CallerError(
                f"the offset of partition {negative[0]} is negative",
                status=422,
                next_step="name the next offset of each partition when the table was taken; 0 for none",
            )
        secret = [name for name in self.options if _SECRET_NAME.search(name)]
        secret += [name for name, value in self.options.items() if _SECRET_VALUE.search(value)]
        if secret or _SECRET_VALUE.search(self.path):
            where = f"option {secret[0]}" if secret else "the path"
            raise CallerError(
                f"{where} holds a secret, and what a build begins with is in the metadata for all to read",
                status=422,
                next_step="put it into the setting build.origin_options of the coordinator",
            )
        check(reach, self.format, self.path, self.options)
        return TableOrigin(
            format=self.format,
            offsets=dict(sorted(self.offsets.items())),
            path=self.path,
            options=self.options,
            id_column=self.id_column,
            document_column=self.document_column,
            taken_at=self.taken_at,
            topic_id=self.topic_id,
        )
