"""What a scan calls to have its rows validated.

Theory of operation
===================
A validated page goes three ways: its entries are gathered as always, the versions of their documents are
asked of the slices while these hold the snapshot (`ask_versions`), and then, without a snapshot, the primary
is asked and the rows are judged (`judged`), both in the primary's thread. Where the primary is behind some
rows, these are asked for again until it has caught up or the wait is over (`wait_ms`, and never longer than
the request).

A primary that does not answer makes rows unknown, not an error: they are as good as those of a scan that did
not ask, and say so. A setting that cannot work is an error, for it would never be noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from indexer.scan.gather.scatter import Target
from indexer.scan.peer.messages import Entry, SliceReader
from indexer.scan.plan.directory import Scannable
from indexer.scan.plan.errors import UnknownIndexError
from indexer.validation.executor import PrimaryThreads
from indexer.validation.page import PageValidation, ValidatedPage
from indexer.validation.primary import (
    NoPrimaryError,
    Primary,
    PrimaryMisconfiguredError,
    PrimaryUnreachableError,
    ShownDocument,
)
from indexer.validation.verdicts import Judge
from indexer.validation.versions import ask_versions
from indexer.view import NodeView
from keytide.catalog.catalog import IndexRecord
from keytide.definition import IndexDefinition
from keytide.errors import CallerError
from keytide.model.timestamp import Timestamp
from keytide.settings.settings import PrimarySettings, Settings

FIRST_PAUSE_S: Final = 0.01
LONGEST_PAUSE_S: Final = 0.1
"""Between two looks at a primary that is behind; doubled from the first to the longest."""
SHORTEST_S: Final = 0.05
"""What a primary is given when waiting for the snapshot has taken all of the request's time."""
JUDGES: Final = 64
"""Indexes whose compiled form is kept."""

MakePrimary = Callable[[str], Primary]
"""The primary of a keyspace that has one set."""


def no_primary(keyspace: str) -> Primary:
    """For a node without primaries."""
    raise NoPrimaryError(f"nothing is set to validate rows of {keyspace} against")


class Validation:
    """Validates rows against the primaries of this node's settings. Used on the event loop.

    Args:
        view: the node, for the definitions of indexes.
        nodes: reads slices.
        settings: keyspace -> its primary.
        make: makes the primary of a keyspace, when it is first asked.
    """

    def __init__(
        self,
        view: NodeView,
        nodes: SliceReader,
        settings: Mapping[str, PrimarySettings],
        make: MakePrimary = no_primary,
    ) -> None:
        self._view = view
        self._nodes = nodes
        self._settings = settings
        self._make = make
        self._primaries: dict[str, PrimaryThreads] = {}
        self._judges: dict[str, Judge] = {}

    @classmethod
    def of(cls, view: NodeView, nodes: SliceReader, settings: Settings) -> Validation:
        """The validation of a node with these settings."""
        return cls(view, nodes, settings.primary, lambda keyspace: primary_of(keyspace, settings))

    async def close(self) -> None:
        """Let go of all connections."""
        for primary in self._primaries.values():
            primary.close()
        self._primaries.clear()

    def rows_per_page(self, keyspace: str, limit: int | None, usual: int) -> int:
        """How many rows a validated page has at most.

        Args:
            limit: what the request asks for.
            usual: when it asks for nothing.

        Raises:
            NoPrimaryError: nothing is set to validate against.
            CallerError (422): more than is validated at once.
        """
        most = self._of(keyspace).max_rows
        if limit is not None and limit > most:
            raise CallerError(
                f"limit {limit} is above the {most} rows that are validated at once",
                status=422,
                problem_type="limit-too-large",
                next_step=f"ask for smaller pages, or raise primary.{keyspace}.max_rows",
            )
        return min(usual, most) if limit is None else limit

    def check(self, index: Scannable, columns: Sequence[str] | None) -> PageCheck:
        """The validation of one page.

        Args:
            columns: of its rows, None for all.

        Raises:
            NoPrimaryError: nothing is set to validate against.
            UnknownIndexError: the index is gone.
        """
        wait_s = self._of(index.keyspace).wait_ms / 1000
        include = index.shape.includes and (columns is None or "include" in columns)
        record = self._view.catalog().index(index.id)
        if record is None:
            raise UnknownIndexError(f"index {index.name} was dropped meanwhile")
        judge = self._judge(index.id, record.definition)
        primary = self._primary(index.keyspace)
        return PageCheck(self._nodes, record, judge, primary, wait_s, include)

    def _of(self, keyspace: str) -> PrimarySettings:
        settings = self._settings.get(keyspace)
        if settings is None:
            raise NoPrimaryError(
                f"nothing is set to validate rows of {keyspace} against",
                next_step=f"leave out `validate`, or set [primary.{keyspace}] on every node",
            )
        return settings

    def _primary(self, keyspace: str) -> PrimaryThreads:
        primary = self._primaries.get(keyspace)
        if primary is None:
            limit, make = self._of(keyspace).connections, self._make
            primary = self._primaries[keyspace] = PrimaryThreads(keyspace, lambda: make(keyspace), limit)
        return primary

    def _judge(self, index: str, definition: IndexDefinition) -> Judge:
        judge = self._judges.get(index)
        if judge is None:
            if len(self._judges) >= JUDGES:
                self._judges.clear()
            judge = self._judges[index] = Judge(definition)
        return judge


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
        self._asked: list[ShownDocument] = []

    async def ask_versions(self, target: Target, entries: Sequence[Entry]) -> None:
        """Take the page's entries, and learn which versions of their documents they come from. May be called
        again, with the page of another snapshot.

        Raises:
            SnapshotMissingError, RetryableError: as reading entries does.
        """
        self._entries = list(entries)
        keys = [key for key, _ in entries]
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
        page = PageValidation(self._judge, self._entries, self._asked, since, self._columns)
        if not page.entries:
            return ValidatedPage([], [], 0)
        loop = asyncio.get_running_loop()
        began = loop.time()
        ends_at = began + timeout_s
        waits_until = min(ends_at, began + self._wait_s)
        detail, waited_ms, pause = "", 0, FIRST_PAUSE_S
        try:
            await self._look(page, ends_at)
            while page.behind and loop.time() + pause < waits_until:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
                await self._look(page, ends_at)
                waited_ms = round((loop.time() - began) * 1000)
        except PrimaryUnreachableError as error:
            detail = error.message
        return page.judged(waited_ms, detail)

    async def _look(self, page: PageValidation, ends_at: float) -> None:
        left = max(SHORTEST_S, ends_at - asyncio.get_running_loop().time())
        await self._primary.run(lambda primary: page.look(primary, left), left)


def primary_of(keyspace: str, settings: Settings) -> Primary:
    """The primary that is set for a keyspace.

    Raises:
        PrimaryMisconfiguredError: it cannot be one, or what it needs is not installed.
    """
    one = settings.primary[keyspace]
    if one.kind == "topic":
        from indexer.validation.topic import TopicPrimary

        return TopicPrimary(keyspace, settings)
    try:
        from indexer.validation.sql import SqlPrimary
    except ImportError as error:
        raise PrimaryMisconfiguredError(
            f"the primary of {keyspace} is a database, and {error.name} is not installed",
            next_step="pip install 'keytide[sql]' on every node",
        ) from error
    return SqlPrimary(keyspace, one)
