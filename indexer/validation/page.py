"""A page while it is judged, and what has become of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from indexer.validation.primary import Primary, PrimaryAnswer, PrimaryUnreachableError, ShownDocument
from indexer.validation.verdicts import BEHIND, STALE, VALID, Entry, Judge
from keytide.model.timestamp import Timestamp


@dataclass(slots=True)
class ValidatedPage:
    """A page after validation.

    Attributes:
        entries: those that are answered: all but the stale ones.
        verdicts: of each of them, "" for valid.
        stale: how many were dropped.
        waited_ms: for a primary that was behind.
        detail: what is wrong with the primary, "" for nothing.
    """

    entries: list[Entry]
    verdicts: list[str]
    stale: int
    waited_ms: int = 0
    detail: str = ""
    unknown: dict[str, int] = field(default_factory=dict)

    def marked(self, rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """The rows of the entries, with their verdicts."""
        for row, verdict in zip(rows, self.verdicts, strict=True):
            row["validated"] = verdict == VALID
            if verdict != VALID:
                row["reason"] = verdict
        return rows

    def summary(self) -> dict[str, Any]:
        """For the answer."""
        told: dict[str, Any] = {
            "valid": len(self.verdicts) - sum(self.unknown.values()),
            "stale": self.stale,
            "unknown": self.unknown,
            "waited_ms": self.waited_ms,
        }
        if self.detail:
            told["detail"] = self.detail
        return told


class PageValidation:
    """A page while it is judged; in one thread at a time.

    Args:
        entries: of the page.
        asked: for each of them its document and version.
        since: timestamp of the snapshot.
        columns: whether rows have included columns.
    """

    def __init__(
        self, judge: Judge, entries: list[Entry], asked: list[ShownDocument], since: Timestamp, columns: bool
    ) -> None:
        self.entries = entries
        self.verdicts: list[str] = []
        self._judge = judge
        self._asked = asked
        self._since = since
        self._columns = columns
        self._found: dict[bytes, PrimaryAnswer] = {}

    @property
    def behind(self) -> bool:
        """Whether a primary that catches up changes a verdict."""
        return not BEHIND.isdisjoint(self.verdicts)

    def look(self, primary: Primary, timeout_s: float) -> None:
        """Ask for all documents, later for those that the primary was behind, and judge."""
        at = range(len(self._asked))
        rows = [row for row in at if self.verdicts[row] in BEHIND] if self.verdicts else list(at)
        wanted = list({self._asked[row].id: self._asked[row] for row in rows}.values())
        answers = primary.documents(wanted, self._judge.fields, self._since, timeout_s)
        found = {one.id: answer for one, answer in zip(wanted, answers, strict=True)}
        verdicts = self._judge.verdicts(
            [self.entries[row] for row in rows],
            [self._asked[row] for row in rows],
            found,
            columns=self._columns,
        )
        judged = self.verdicts.copy() or [VALID] * len(self.entries)
        for row, verdict in zip(rows, verdicts, strict=True):
            judged[row] = verdict
        self.verdicts = judged

    def judged(self, waited_ms: int, detail: str) -> ValidatedPage:
        """What has come of it; a thread that is late may still be at work."""
        found = self.verdicts or [PrimaryUnreachableError.problem_type] * len(self.entries)
        kept = [row for row, verdict in enumerate(found) if verdict != STALE]
        verdicts = [found[row] for row in kept]
        return ValidatedPage(
            [self.entries[row] for row in kept],
            verdicts,
            len(self.entries) - len(kept),
            waited_ms,
            detail,
            dict(Counter(verdict for verdict in verdicts if verdict != VALID)),
        )
