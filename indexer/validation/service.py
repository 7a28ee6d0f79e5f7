"""What a scan calls to have its rows validated.

Theory of operation
===================
A validated page is gathered as always, and then judged (`PageCheck`).

A primary that does not answer makes rows unknown, not an error: they are as good as those of a scan that did
not ask, and say so. A setting that cannot work is an error, for it would never be noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from indexer.scan.peer.messages import SliceReader
from indexer.scan.plan.directory import Scannable
from indexer.scan.plan.errors import UnknownIndexError
from indexer.validation.core.primary import (
    NoPrimaryError,
    Primary,
    PrimaryMisconfiguredError,
)
from indexer.validation.core.verdicts import Judge
from indexer.validation.executor import PrimaryThreads
from indexer.validation.page import PageCheck
from indexer.view import NodeView
from keytide.definition.index import IndexDefinition
from keytide.errors import CallerError
from keytide.settings.settings import PrimarySettings, Settings

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
