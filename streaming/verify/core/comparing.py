"""Judging documents: what slices hold of one against what the source has of it. Pure.

Theory of operation
===================
The index at snapshot T must be the projection of the newest versions below T's timestamp, exactly. The source
is read after T, and may have lost records meanwhile, so a difference is not a fault before it is proven:

* Compaction keeps the newest record of a document. One below T may have gone because a newer one lies past T,
  or past all that was read. So where the version that the index has was not read, what is found counts only
  when it is found again, unchanged, at a newer snapshot that covers everything written before the first look
  was over (`is_proven`): what the cleaner explains has changed by then, in the index or in the source.
* Compaction keeps a deletion for `delete.retention.ms`. Unless reading took longer than that, an older record
  is gone before its deletion is. So a document of which nothing is left was deleted, or never was.
* Retention removes what lies below the first offset (R29). An entry whose version lies there, with nothing
  newer, stays by design; it is `UNPROVABLE`. So is a row of the table that a build began with; where one did,
  its offsets are the first that count (`VerificationContext.starts`).
* A deletion of a document in two source partitions goes in its time, while an older record of the other
  partition stays: compaction, and retention, work per partition. A slice remembers such a deletion
  (`RememberedDeletion`); where it is newer than what is left, that proves nothing.
* A document in two source partitions is ordered by record times, of which compaction or retention may have
  removed the largest: where index and source each have the newest version of another partition, nobody can
  tell. From a log that has everything all can be told: there an older write that was met after the newer one,
  and taken for it, is a fault like any other. (The order of versions is settled, so what the index has is not
  the projection; a slice that did not know better does not make it right.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from keytide.collation import told_key
from keytide.model.timestamp import TABLE_PARTITION
from keytide.structure import Structure
from keytide.wire.digests import BackRow
from streaming.verify.core.difference import (
    Difference,
    DifferenceClass,
    IndexedDocument,
    SliceEntry,
    VersionPlace,
)
from streaming.verify.core.newest import Versions, decided

UNDECIDED: Final = "undecided"
"""To be judged again at a newer snapshot."""
CHANGES_TOO_FAST: Final = (
    "it is changed, and the source compacted, faster than it can be compared; verify again when it is quieter"
)


class SourceDocument(NamedTuple):
    """What the source has of one document.

    Attributes:
        version: the newest below the snapshot; None when there is none.
        entries: index id -> its entries, sorted.
        later: whether it has a record past the snapshot.
        others: the newest versions of other partitions.
    """

    version: VersionPlace | None = None
    entries: Mapping[str, tuple[SliceEntry, ...]] = {}
    later: bool = False
    others: tuple[VersionPlace, ...] = ()

    def having(self, index: str, told: bytes, structure: Structure) -> list[SliceEntry]:
        """Its entries in an index whose canonical key is told so (`told_key`)."""
        read, parts, descending = structure.canonical, structure.parts, structure.descending
        return [
            entry
            for entry in self.entries.get(index, ())
            if told_key(read(entry.key, entry.value), parts, descending) == told
        ]


class Evidence(NamedTuple):
    """What may have been lost of the source while it was read.

    Attributes:
        floors: source partition -> the first offset that counts: nothing that lies below is read.
        compacted: whether the cleaner runs.
        deletions_lost: reading took longer than deletions are kept.
    """

    floors: Mapping[int, int] = {}
    compacted: bool = False
    deletions_lost: bool = False

    def below(self, version: VersionPlace) -> bool:
        """Whether a version lies where nothing is left."""
        return version.offset < self.floors.get(version.partition, 0)

    def thinned(self, *versions: VersionPlace) -> bool:
        """Whether older versions of their partitions may be gone, which had larger times."""
        return self.compacted or any(self.floors.get(one.partition, 0) > 0 for one in versions)


NOTHING: Final = SourceDocument()


class RememberedDeletion(IndexedDocument, frozen=True, array_like=True):
    """What a slice holds of a document that it has no keys of and was met in two source partitions.

    Attributes:
        deletion: the newest version, as the slice remembers it; `version` is None, as where nothing is known.
    """

    deletion: VersionPlace


def judge(
    index: str, docid: bytes, held: Sequence[IndexedDocument], truth: SourceDocument, evidence: Evidence
) -> Difference | Literal["undecided"] | None:
    """What is wrong with one document in one index; None when nothing is.

    Args:
        held: what slices hold of it, those that hold nothing left out; ascending by slice.
    """
    expected = truth.entries.get(index, ())
    found = tuple(sorted(entry for one in held for entry in one.entries))
    flaw = _record_flaw(held, expected, truth)
    if found == expected and not flaw:
        return None
    versions = {one.slice: one.version for one in held if one.version is not None}

    def difference(kind: DifferenceClass, reason: str = "") -> Difference:
        return Difference(kind, index, docid, expected, found, truth.version, versions, (), reason)

    same = _agree(held, truth)
    if evidence.compacted and truth.later and not same:
        return UNDECIDED
    deletions = [one.deletion for one in held if isinstance(one, RememberedDeletion)]
    if reason := _unproven(versions, deletions, expected, truth, evidence, same=same):
        return difference(DifferenceClass.UNPROVABLE, reason)
    kind, reason = _class(expected, found, flaw)
    return difference(kind, reason or _ghosts(held) or _met_last(versions, truth))


def is_proven(held: Sequence[IndexedDocument], truth: SourceDocument, evidence: Evidence) -> bool:
    """Whether a difference of a document is proven by one look: the cleaner cannot explain it."""
    return not evidence.compacted or _agree(held, truth)


def _agree(held: Sequence[IndexedDocument], truth: SourceDocument) -> bool:
    """Whether slices know the document, all of them in the newest version that was read."""
    versions = [one.version for one in held if one.version is not None]
    return bool(versions) and all(version.is_same(truth.version) for version in versions)


def _unproven(
    versions: Mapping[int, VersionPlace],
    deletions: Sequence[VersionPlace],
    expected: tuple[SliceEntry, ...],
    truth: SourceDocument,
    evidence: Evidence,
    *,
    same: bool,
) -> str:
    """Why the source cannot prove what is right, "" when it can."""
    # Where the source expects nothing either, a deletion makes no difference.
    if expected and any(_has_won(deletion, truth, evidence) for deletion in deletions):
        return "a newer deletion is remembered, of another source partition, which may have removed it"
    if same:
        return ""
    if truth.version is None:
        if any(version.partition == TABLE_PARTITION for version in versions.values()):
            return "it comes from the table that the build began with, and no record of it is newer"
        if any(evidence.below(version) for version in versions.values()):
            return "its record lies below the first offset that the source still holds, or below the table's"
    elif evidence.below(truth.version):
        return "the source has removed the record while it was read"
    elif any(_may_be_newer(version, truth.version, truth, evidence) for version in versions.values()):
        return "it was written to two source partitions, and what is left does not say which write was newer"
    if evidence.deletions_lost and (truth.version is None or (expected and not versions)):
        return "reading took longer than the source keeps deletions (delete.retention.ms)"
    return ""


def _may_be_newer(
    held: VersionPlace, newest: VersionPlace, truth: SourceDocument, evidence: Evidence
) -> bool:
    """Whether a version that a slice has may be newer than the newest that was read: one of another partition
    that is gone from there, or older ones are, whose times would tell."""
    if held.partition in (newest.partition, TABLE_PARTITION):
        return False
    return evidence.below(held) or (_is_among(held, truth.others) and evidence.thinned(held, newest))


def _has_won(deletion: VersionPlace, truth: SourceDocument, evidence: Evidence) -> bool:
    """Whether a deletion that a slice remembers is newer than the newest version that was read, and may be
    gone from another partition. (Within one, an older record goes before its deletion does.)"""
    newest = truth.version
    if newest is None or deletion.partition in (newest.partition, TABLE_PARTITION):
        return False
    if (deletion.time, deletion.partition) < (newest.time, newest.partition):
        return False
    return evidence.compacted or _may_be_newer(deletion, newest, truth, evidence)


def _is_among(version: VersionPlace, others: Sequence[VersionPlace]) -> bool:
    return any(version.is_same(one) for one in others)


def _class(
    expected: tuple[SliceEntry, ...], found: tuple[SliceEntry, ...], flaw: str
) -> tuple[DifferenceClass, str]:
    """The class of a proven difference, and what is to be said beside."""
    if found == expected:
        return DifferenceClass.WRONG_RECORD, flaw
    wanted = {(entry.key, entry.slice) for entry in expected}
    there = {(entry.key, entry.slice) for entry in found}
    if wanted == there:
        return DifferenceClass.WRONG_INCLUDED, ""
    if there < wanted:
        return DifferenceClass.MISSING, ""
    if wanted < there:
        return DifferenceClass.EXTRA, ""
    if {key for key, _ in wanted} == {key for key, _ in there}:
        return DifferenceClass.WRONG_KEY, "it lies in a slice where nobody looks for it"
    return DifferenceClass.WRONG_KEY, ""


def _record_flaw(
    held: Sequence[IndexedDocument], expected: tuple[SliceEntry, ...], truth: SourceDocument
) -> str:
    """What is wrong with what slices remember of the document beside its entries, "" when nothing is."""
    by_slice: dict[int, list[bytes]] = {}
    for entry in expected:
        by_slice.setdefault(entry.slice, []).append(entry.key)
    for one in held:
        keys = tuple(sorted(by_slice.pop(one.slice, ())))
        if one.version is None:
            if keys:
                return f"the back index of slice {one.slice} does not know it"
            continue
        if one.keys != keys:
            return f"the back index of slice {one.slice} has other keys"
        if not one.version.is_same(truth.version):
            return f"the back index of slice {one.slice} has another version"
    missing = sorted(by_slice)
    return f"the back index of slice {missing[0]} does not know it" if missing else ""


def _ghosts(held: Sequence[IndexedDocument]) -> str:
    """Slices with entries that their back index does not know: no change will ever remove them."""
    blind = [
        one.slice
        for one in held
        if any(one.version is None or entry.key not in one.keys for entry in one.entries)
    ]
    if not blind:
        return ""
    return f"the back index of slice {', '.join(map(str, blind))} does not know what is there"


def _met_last(versions: Mapping[int, VersionPlace], truth: SourceDocument) -> str:
    """Slices whose version is the newest of another partition than the newest of all."""
    late = [number for number, version in versions.items() if _is_among(version, truth.others)]
    if not late:
        return ""
    return (
        "it was written to two source partitions, and the write that is older was met last, in slice "
        f"{', '.join(map(str, late))}"
    )


# --- from columns and rows ---------------------------------------------------------------------------------


def source_documents_of(
    before: Versions, later: Versions, indexes: Sequence[str]
) -> dict[bytes, SourceDocument]:
    """What the source has of each document.

    Args:
        before: reduced versions below the snapshot.
        later: versions past it.
        indexes: ids, as entries are numbered.
    """
    newest, foreign = decided(before)
    ids = newest.column("id").to_pylist()
    places = _places(newest)
    past = set(later.column("id").to_pylist())
    others: dict[bytes, list[VersionPlace]] = {}
    if len(foreign):
        doubtful = {ids[row]: places[row] for row in foreign.tolist()}
        for docid, place in zip(before.column("id").to_pylist(), _places(before), strict=True):
            if docid in doubtful and doubtful[docid].partition != place.partition:
                others.setdefault(docid, []).append(place)
    truths = {
        docid: SourceDocument(
            place,
            _entries_of(some, indexes),
            docid in past,
            tuple(others.get(docid, ())),
        )
        for docid, place, some in zip(ids, places, newest.column("entries").to_pylist(), strict=True)
    }
    for docid in past - truths.keys():
        truths[docid] = SourceDocument(later=True)
    return truths


def _places(versions: Versions) -> list[VersionPlace]:
    columns = (versions.column(name).to_pylist() for name in ("partition", "offset", "time"))
    return list(map(VersionPlace, *columns))


def _entries_of(entries: list[dict[str, Any]], indexes: Sequence[str]) -> dict[str, tuple[SliceEntry, ...]]:
    """The entries of one document, by index id, sorted."""
    found: dict[str, list[SliceEntry]] = {}
    for one in entries:
        found.setdefault(indexes[one["index"]], []).append(SliceEntry(one["key"], one["value"], one["slice"]))
    return {index: tuple(sorted(some)) for index, some in found.items()}


def indexed_documents_of(
    number: int, entries: Iterable[tuple[bytes, bytes, bytes]], back: Iterable[BackRow]
) -> Iterable[tuple[bytes, IndexedDocument]]:
    """What a slice holds of each document, from its rows. Of a remembered deletion that is its version alone
    (`RememberedDeletion`)."""
    forward: dict[bytes, list[SliceEntry]] = {}
    for docid, key, value in entries:
        forward.setdefault(docid, []).append(SliceEntry(key, value, number))
    known = {row.id: row for row in back}
    for docid in sorted(forward.keys() | known.keys()):
        mine = tuple(sorted(forward.get(docid, ())))
        row = known.get(docid)
        if row is None:
            yield docid, IndexedDocument(number, None, (), mine)
            continue
        version = VersionPlace(row.partition, row.offset, row.time)
        if row.keys:
            yield docid, IndexedDocument(number, version, tuple(sorted(row.keys)), mine)
        else:
            yield docid, RememberedDeletion(number, None, (), mine, version)
