"""Tables that builds begin with in place of the log's beginning: what a table holds, and how its rows look in
micro-batch 0. Simulated drivers never read what lies below the offsets of their table.
"""

from __future__ import annotations

from dataclasses import replace

from keytide.catalog.table_origin import TableOrigin
from keytide.model.timestamp import TABLE_PARTITION
from tests.simulation.chance import Chance
from tests.simulation.source import Source, Version

BEHIND = 7
"""So many records may lie between a table and the end of a partition."""


class Tables:
    """All tables that were ever taken.

    Args:
        source: what they are taken of.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._rows: dict[str, list[Version]] = {}

    def take(self, chance: Chance, now: int) -> TableOrigin:
        """The documents of some moment just now; deleted ones are not in it."""
        logs = self._source.logs
        offsets = {log.partition: log.end - chance.below(min(log.end, BEHIND) + 1) for log in logs}
        path = f"table-{len(self._rows)}"
        newest = [version for log in logs for version in log.folds[offsets[log.partition]].values()]
        self._rows[path] = sorted(
            (as_row(version) for version in newest if version.document is not None),
            key=lambda row: row.offset,
        )
        epochs = {log.partition: log.history().epoch_below(offsets[log.partition]) for log in logs}
        return TableOrigin("simulated", offsets, path, taken_at=now, epochs=epochs)

    def rows(self, origin: TableOrigin) -> list[Version]:
        """The rows of a table, in the order of their numbers."""
        return self._rows[origin.path]


def as_row(version: Version) -> Version:
    """A record's document as a row of a table: which record it was, the row does not say."""
    return replace(version, partition=TABLE_PARTITION, offset=version.number, epoch=-1, time=0)


def place_of(version: Version, origin: TableOrigin | None, topic_id: str) -> tuple[int, int]:
    """(partition, offset) under which an index that began with `origin` has a version."""
    if origin is None or origin.topic_id != topic_id:
        return version.partition, version.offset
    if version.offset < origin.offsets[version.partition]:
        return TABLE_PARTITION, version.number
    return version.partition, version.offset
