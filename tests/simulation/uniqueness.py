"""The checker of UNIQUE: index `a` is one. Whatever a slice reports is true, and at the end all there is has
been reported.

True is what the documents did at the producers, whom no timestamp tears: two of them had the key at one
moment, in the order of all writes over all partitions. A value that moved from one to the other never makes
that true, whatever a timestamp shows in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from indexer.hosting.slice_runner import SliceKey, SliceRunner
from keytide.collation import decode_key
from keytide.wire.messages import UniqueViolation
from tests.simulation.checkers import BrokenError
from tests.simulation.source import Layout, Row, Source, Version, canonical


class Stay(NamedTuple):
    """How long a document had a key without a break, by numbers of writes.

    Attributes:
        begin: the write that brought it.
        end: the write that took it away; None when none has.
    """

    begin: int
    end: int | None

    def meets(self, other: Stay) -> bool:
        """Whether there was a moment of both."""
        return (other.end is None or self.begin < other.end) and (self.end is None or other.begin < self.end)


class Uniqueness:
    """Looks at what the slices of UNIQUE indexes report.

    Attributes:
        reports: violations that were looked at.
    """

    def __init__(self, source: Source, layout_of: Callable[[SliceKey], Layout]) -> None:
        self._source = source
        self._layout_of = layout_of
        self._seen: dict[int, tuple[UniqueViolation, ...]] = {}
        self.reports = 0

    def look(self, name: str, runner: SliceRunner) -> None:
        """What a slice reports must be true. (What was written on branches that are lost is not judged.)"""
        unique = runner.unique
        if unique is None or unique.shown is self._seen.get(id(unique)):
            return
        self._seen[id(unique)] = unique.shown
        if self._source.lost:
            return
        for one in unique.shown:
            self.reports += 1
            self._check(f"{name}:{runner.key[0]}/{runner.key[1]}", runner, one)

    def left(self, name: str, runner: SliceRunner) -> str:
        """What of the violations that a slice has at the end is not reported, "" when all is."""
        unique = runner.unique
        if unique is None:
            return ""
        want: dict[bytes, set[bytes]] = {}
        for log in self._source.logs:
            for docid, version in log.folds[log.end].items():
                for entry_key, value in self._rows(runner, version):
                    key = canonical(entry_key.removesuffix(docid), value)
                    if decode_key(key, 1)[0] != [None]:
                        want.setdefault(key, set()).add(docid)
        want = {key: ids for key, ids in want.items() if len(ids) > 1}
        told = {one.key: {document.id for document in one.documents} for one in unique.shown}
        if told == want and runner.unique is not None and runner.unique.violations == len(want):
            return ""
        return f"{name}: violations are {want}, reported {told}"

    def _check(self, name: str, runner: SliceRunner, one: UniqueViolation) -> None:
        stays: list[Stay] = []
        for document in one.documents:
            log = self._source.logs[document.partition]
            version = log.records[document.offset]
            newest = log.folds[runner.core.applied.timestamp.offset(document.partition)].get(document.id)
            if newest is not version or one.key not in self._keys(runner, version):
                raise BrokenError("Unique", f"{name}: {document} is not what {one.key!r} has")
            stays.append(self._stay(runner, version, one.key))
        if not any(stay.meets(other) for n, stay in enumerate(stays) for other in stays[:n]):
            story = f"{name}: {one.key!r} was had by none of {one.documents} together: {stays}"
            raise BrokenError("Unique", story, [document.id for document in one.documents])

    def _keys(self, runner: SliceRunner, version: Version) -> set[bytes]:
        return {
            canonical(entry_key.removesuffix(version.id), value)
            for entry_key, value in self._rows(runner, version)
        }

    def _rows(self, runner: SliceRunner, version: Version) -> Sequence[Row]:
        return version.rows_in(self._layout_of(runner.key))[runner.key[1]]

    def _stay(self, runner: SliceRunner, version: Version, key: bytes) -> Stay:
        """Around a version of a document, back and forth, as long as it had the key."""
        mine = [one for log in self._source.logs for one in log.records if one.id == version.id]
        mine.sort(key=lambda one: one.number)
        at = mine.index(version)
        begin = at
        while begin and key in self._keys(runner, mine[begin - 1]):
            begin -= 1
        end = at + 1
        while end < len(mine) and key in self._keys(runner, mine[end]):
            end += 1
        return Stay(mine[begin].number, mine[end].number if end < len(mine) else None)
