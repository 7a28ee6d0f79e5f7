"""Verdicts: does a row's document still project to the row? Pure.

Documents are projected by `projector.core.projection`, the very code that filled the index, refusals and
all; a document that cannot be indexed, is left out or is gone projects to nothing. The row's entry key (key
and id) among the projected ones is all that "still projects to its key" means. Two spellings of a number are
one key.

    the document projects to the key      valid; `columns-differ` if included columns are asked for and differ
    it does not, the primary has the
      version that the row comes from     stale
    it does not, and the primary lacks    unknown: `primary-behind`, or `not-there-yet` without a document
    the primary can say nothing           unknown, in its words

A row whose key holds is never dropped, whatever else differs: a reader of its key must not miss it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from indexer.validation.core.primary import UNKNOWN_OFFSET, AnsweredDocument, PrimaryAnswer
from keytide.collation import NotIndexableError, encode_part
from keytide.definition.index import IndexDefinition
from keytide.model.entry import Entry, unpack_value
from projector.core.projection import KeyspacePlan, SourceBatch, project

VALID: Final = ""
STALE: Final = "stale"
PRIMARY_BEHIND: Final = "primary-behind"
NOT_THERE_YET: Final = "not-there-yet"
COLUMNS_DIFFER: Final = "columns-differ"
NO_VERSION: Final = "no-version"

BEHIND: Final = frozenset({PRIMARY_BEHIND, NOT_THERE_YET})
"""Verdicts that a primary which catches up will change."""

_INDEX: Final = "judged"
_decode_json = msgspec.json.Decoder().decode


class Judge:
    """Judges rows of one index.

    Args:
        definition: of the index.

    Attributes:
        fields: the top-level fields of a document that decide.
    """

    def __init__(self, definition: IndexDefinition) -> None:
        self._structure = definition.structure
        self._plan = KeyspacePlan([(_INDEX, definition)])
        self.fields = self._plan.indexes[_INDEX].fields

    def ids(self, entries: Sequence[Entry]) -> list[bytes]:
        """The document id of each entry."""
        keys = [key for key, _ in entries]
        return [key[start:] for key, start in zip(keys, self._structure.id_starts(keys), strict=True)]

    def in_full(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries with their canonical keys."""
        if not self._structure.key_in_value:
            return list(entries)
        return list(itertools.starmap(self._structure.in_full, entries))

    def verdicts(
        self,
        entries: Sequence[Entry],
        asked: Sequence[AnsweredDocument],
        found: Mapping[bytes, PrimaryAnswer],
        *,
        columns: bool,
    ) -> list[str]:
        """`VALID`, `STALE`, or why nothing is known, for each entry.

        Args:
            asked: for each entry its document and version.
            found: by document id.
            columns: whether included columns matter.
        """
        projected = self._project(found)
        verdicts: list[str] = []
        for (key, value), one in zip(self.in_full(entries), asked, strict=True):
            answer = found[one.id]
            if answer.why:
                verdicts.append(answer.why)
            elif key in projected:
                same = not columns or _same_columns(value, projected[key])
                verdicts.append(VALID if same else _difference(one, answer, COLUMNS_DIFFER))
            else:
                verdicts.append(_difference(one, answer, STALE))
        return verdicts

    def _project(self, found: Mapping[bytes, PrimaryAnswer]) -> dict[bytes, bytes]:
        """The entries of all documents, in full: entry key -> value."""
        some = [(id_, one.document) for id_, one in found.items() if one.document is not None]
        count = len(some)
        numbers = range(count)
        batch = SourceBatch(
            0,
            -1,
            0,
            count,
            numbers,
            [id_ for id_, _ in some],
            [document for _, document in some],
            [0] * count,
        )
        result = project(batch, self._plan, with_heard=False)
        entries = result.indexes[_INDEX]
        values = entries.values or [b""] * len(entries.keys)
        ids = result.ids
        keys = (
            key + ids[ordinal] for ordinal, key in zip(entries.ordinals.tolist(), entries.keys, strict=True)
        )
        return dict(self.in_full(list(zip(keys, values, strict=True))))


def _difference(asked: AnsweredDocument, found: PrimaryAnswer, meaning: str) -> str:
    """What a difference means: `meaning` if the primary has the version that the row comes from."""
    if found.position is None or found.position > asked.offset != UNKNOWN_OFFSET:
        return meaning
    if asked.offset == UNKNOWN_OFFSET:
        return NO_VERSION
    return NOT_THERE_YET if found.document is None else PRIMARY_BEHIND


def _same_columns(one: bytes, other: bytes) -> bool:
    """Whether two entry values hold the same included columns: the same values, however written."""
    if one == other:
        return True
    first, second = unpack_value(one)[1], unpack_value(other)[1]
    if first == second:
        return True
    return first is not None and second is not None and _comparable(first) == _comparable(second)


def _comparable(columns: bytes) -> Any:
    """Equal for equal columns: 5 and 5.0 are, and objects with their members in another order."""
    value = _decode_json(columns)
    try:
        return encode_part(value)
    except NotIndexableError:
        return value
