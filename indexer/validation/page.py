"""A page while it is judged, and what has become of it.

Theory of operation
===================
The versions of a page's documents are asked of the slices while these hold the snapshot (`ask_versions`), and
then, without a snapshot, the primary is asked and the rows are judged (`judged`), both in the primary's
thread. Where the primary is behind some rows, these are asked for again until it has caught up or the wait is
over (`wait_ms`, and never longer than the request).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from indexer.scan.gather.scatter import Target
from indexer.scan.peer.messages import Entry, SliceReader
from indexer.validation.core.primary import AnsweredDocument, Primary, PrimaryUnreachableError
from indexer.validation.core.verdicts import BEHIND, STALE, VALID, Judge
from indexer.validation.executor import PrimaryThreads
from indexer.validation.versions import ask_versions
from keytide.catalog.records import IndexRecord
from keytide.model.timestamp import Timestamp

FIRST_PAUSE_S: Final = 0.01
LONGEST_PAUSE_S: Final = 0.1
"""Between two looks at a primary that is behind; doubled from the first to the longest."""
SHORTEST_S: Final = 0.05
"""What a primary is given when waiting for the snapshot has taken all of the request's time."""


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


class PageCheck:
    """One page's validation: `ask_versions` while its snapshot is held, then `judged`.

    Args:
        record: of the index.
        judge: of the index.
        wait_s: how long to wait for a primary that is behind.
        columns: whether rows have included columns.
    """

    def __init__(
        self,
        nodes: SliceReader,
        record: IndexRecord,
        judge: Judge,
        primary: PrimaryThreads,
        wait_s: float,
        columns: bool,
    ) -> None:
        self._nodes = nodes
        self._record = record
        self._judge = judge
        self._primary = primary
        self._wait_s = wait_s
        self._columns = columns
        self._entries: list[Entry] = []
        self._asked: list[AnsweredDocument] = []
        self._verdicts: list[str] = []

    async def ask_versions(self, target: Target, entries: Sequence[Entry]) -> None:
        """Take the page's entries, and learn which versions of their documents they come from. May be called
        again, with the page of another snapshot.

        Raises:
            SnapshotMissingError, RetryableError: as reading entries does.
        """
        self._entries = list(entries)
        keys = [key for key, _ in self._judge.in_full(entries)]
        self._asked = await ask_versions(
            target,
            self._nodes,
            self._record.definition,
            keys,
            self._judge.ids(entries),
            self._record.splits,
        )

    async def judged(self, since: Timestamp, timeout_s: float) -> ValidatedPage:
        """The page without its stale rows.

        Args:
            since: timestamp of the snapshot.
            timeout_s: what is left of the request's time.

        Raises:
            PrimaryMisconfiguredError: the settings cannot work.
        """
        if not self._entries:
            return ValidatedPage([], [], 0)
        loop = asyncio.get_running_loop()
        began = loop.time()
        ends_at = began + timeout_s
        waits_until = min(ends_at, began + self._wait_s)
        detail, waited_ms, pause = "", 0, FIRST_PAUSE_S
        try:
            await self._look(since, ends_at)
            while not BEHIND.isdisjoint(self._verdicts) and loop.time() + pause < waits_until:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
                await self._look(since, ends_at)
                waited_ms = round((loop.time() - began) * 1000)
        except PrimaryUnreachableError as error:
            detail = error.message
        # A thread that is late may still be at work.
        found = self._verdicts or [PrimaryUnreachableError.problem_type] * len(self._entries)
        kept = [row for row, verdict in enumerate(found) if verdict != STALE]
        verdicts = [found[row] for row in kept]
        return ValidatedPage(
            [self._entries[row] for row in kept],
            verdicts,
            len(self._entries) - len(kept),
            waited_ms,
            detail,
            dict(Counter(verdict for verdict in verdicts if verdict != VALID)),
        )

    async def _look(self, since: Timestamp, ends_at: float) -> None:
        left = max(SHORTEST_S, ends_at - asyncio.get_running_loop().time())
        await self._primary.run(lambda primary: self._judge_rows(primary, since, left), left)

    def _judge_rows(self, primary: Primary, since: Timestamp, timeout_s: float) -> None:
        """Ask for all documents, later for those that the primary was behind, and judge. In its thread."""
        before = self._verdicts
        at = range(len(self._asked))
        rows = [row for row in at if before[row] in BEHIND] if before else list(at)
        wanted = list({self._asked[row].id: self._asked[row] for row in rows}.values())
        answers = primary.documents(wanted, self._judge.fields, since, timeout_s)
        found = {one.id: answer for one, answer in zip(wanted, answers, strict=True)}
        verdicts = self._judge.verdicts(
            [self._entries[row] for row in rows],
            [self._asked[row] for row in rows],
            found,
            columns=self._columns,
        )
        judged = before.copy() or [VALID] * len(self._entries)
        for row, verdict in zip(rows, verdicts, strict=True):
            judged[row] = verdict
        self._verdicts = judged
