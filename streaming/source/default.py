"""The classes that Spark calls (PySpark's Python Data Source API).

Every Spark session that looks for a data source by name imports this module, those of Keytide's own backfills
too. So what the source needs is imported when it is used: that takes half a second.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from streaming.source.core.options import Options
    from streaming.source.opening import IndexSnapshot

TOKEN_VARIABLE: Final = "KEYTIDE_TOKEN"
"""Holds the driver's API token where no option does, as for `keytide` itself."""


class DefaultSource(DataSource):
    """An index at one snapshot. Made once for each `load()`, then pickled and kept by Spark.

    Making it holds the snapshot: Spark calls `schema` only if the user gives none, and `reader` for every use
    of a DataFrame.

    Raises:
        KeytideError: an option is wrong, or nodes refuse it.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        from streaming.source.core.options import Options
        from streaming.source.opening import open_index

        self._options = Options.read(options, os.environ.get(TOKEN_VARIABLE, ""))
        self._opened = open_index(self._options)

    @classmethod
    def name(cls) -> str:
        return "keytide"

    def schema(self) -> StructType:
        from streaming.source.columns import struct_of

        return struct_of(self._opened.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return Reader(self._options, self._opened, schema)


class Reader(DataSourceReader):
    """Reads a DataFrame. Pickled for its tasks.

    Raises:
        OptionError: the schema has columns or types that the index has not.
    """

    def __init__(self, options: Options, opened: IndexSnapshot, schema: StructType) -> None:
        from streaming.source.columns import chosen

        self._options = options
        self._opened = opened
        self._schema = schema
        self._columns = tuple(chosen(opened.columns, schema))

    def partitions(self) -> list[InputPartition]:
        """One for each slice that can hold what is selected."""
        return [InputPartition(number) for number in self._opened.slices]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of a slice; none for the task that Spark makes of no partitions."""
        from streaming.source.columns import arranged
        from streaming.source.opening import read_slice

        if partition is None:
            return
        for batch in read_slice(self._options, self._opened, partition.value, self._columns):
            yield arranged(batch, self._schema)
