"""Statements: CREATE INDEX, ALTER INDEX, DROP INDEX, BUILD INDEX.

Theory of operation
===================
sqlglot's tokenizer cuts the text. The frame of a statement (clauses, names, options), much of which
PostgreSQL does not have, is read here from the tokens; every expression in it goes, as a run of tokens, to
sqlglot's expression parser (`sql`), so all places are places in the whole text. Clauses after the column
list may come in any order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, TypeVar

import msgspec
from msgspec.structs import replace
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token

from keytide.definition.clauses.create import OPTIONS, CreateReader
from keytide.definition.clauses.options import boolean, options, whole_number
from keytide.definition.clauses.partitioning import PartitionReader, WrittenNumber, partitions_by
from keytide.definition.errors import InvalidStatementError, QueryElsewhereError
from keytide.definition.expression import Literal
from keytide.definition.index import MAX_REPLICAS, MAX_SLICES, IndexDefinition, PartitionBy
from keytide.definition.names import check_index_name, index_name, keyspace_name, refuse
from keytide.definition.tokens import Cursor
from keytide.definition.values import Dialect
from keytide.model.hints import did_you_mean

MAX_STATEMENT: Final = 100_000
"""Characters of a statement."""


class CreateIndex(msgspec.Struct, frozen=True):
    """Attributes:
    said: the options that the statement gives; the definition has defaults for the others. `partitions` too,
        when it says in any way how many there are, and `subpartition`, when it says of how many slices.
    or_replace: an index of that name is replaced by this one.
    """

    definition: IndexDefinition
    if_not_exists: bool = False
    said: frozenset[str] = frozenset()
    or_replace: bool = False


class AlterIndex(msgspec.Struct, frozen=True):
    """Attributes:
    replicas, slices: as many from now on; None for as many as there are. Splits that are given say `slices`.
    auto_split: whether it gets more slices by itself; None for as it is.
    partition: how its entries fall to slices from now on; None for as they do.
    """

    name: str
    replicas: int | None = None
    slices: int | None = None
    auto_split: bool | None = None
    partition: PartitionBy | None = None
    partitions: int | None = None

    @property
    def asks_for_layout(self) -> bool:
        """Whether it may ask for other slices than there are."""
        return not (self.slices is None and self.partition is None and self.partitions is None)


class SpreadPartition(msgspec.Struct, frozen=True):
    """Attributes:
    partition: number of the partition that is to be of other slices.
    slices: how many, documents falling to them by their ids.
    """

    name: str
    partition: int
    slices: int
    asks_for_layout: ClassVar[bool] = True


class SplitPartition(msgspec.Struct, frozen=True):
    """Attributes:
    partition: number of the partition of a RANGE index that is parted.
    at: where, ascending; empty for where half of what is written to it lies.
    """

    name: str
    partition: int
    at: tuple[Literal, ...] = ()
    asks_for_layout: ClassVar[bool] = True


class MergePartitions(msgspec.Struct, frozen=True):
    """Attributes:
    first, second: numbers of two partitions of a RANGE index that become one.
    """

    name: str
    first: int
    second: int
    asks_for_layout: ClassVar[bool] = True


class RenameIndex(msgspec.Struct, frozen=True):
    name: str
    new_name: str


class DropIndex(msgspec.Struct, frozen=True):
    name: str
    if_exists: bool = False


class BuildIndex(msgspec.Struct, frozen=True):
    keyspace: str
    names: tuple[str, ...]


Alteration = AlterIndex | SplitPartition | MergePartitions | SpreadPartition
"""What says of an index that there is how many copies and slices it is to have, and where these part."""
Statement = CreateIndex | Alteration | RenameIndex | DropIndex | BuildIndex
CutT = TypeVar("CutT")

ALTERABLE: Final = ("slices", "partitions", "replicas", "auto_split")
"""Options that can be said of an index that there is."""
_ALTER: Final = (
    "Write ALTER INDEX name SET (replicas=1), PARTITION BY, PARTITION 2 SET (slices=4), SPLIT PARTITION, "
    "MERGE PARTITIONS or RENAME TO other."
)
_BEGINNINGS: Final = "Write CREATE INDEX, ALTER INDEX, DROP INDEX, BUILD INDEX, SELECT or EXPLAIN."


def parse_statement(text: str) -> Statement:
    """The one statement in `text`; a semicolon may end it.

    Raises:
        InvalidStatementError: it cannot be understood; says why and where.
    """
    return _StatementReader(text, cut(text, Dialect().tokenize)).statement()


def cut(text: str, tokenize: Callable[[str], CutT]) -> CutT:
    """What a tokenizer makes of a statement.

    Raises:
        InvalidStatementError: it is too long, not Unicode, or has a quote or comment that is not closed.
    """
    if len(text) > MAX_STATEMENT:
        raise InvalidStatementError(f"a statement has at most {MAX_STATEMENT} characters", "", 0)
    try:
        text.encode()
        return tokenize(text)
    except UnicodeEncodeError as error:
        raise InvalidStatementError(
            "the statement is not valid Unicode", text[: error.start], error.start
        ) from error
    except TokenError as error:
        raise unfinished(text) from error


def unfinished(text: str) -> InvalidStatementError:
    """An error at the quote or comment that is not closed (the tokenizer only says that there is one)."""
    at = 0
    for match in re.finditer(
        r"--[^\n]*+|/\*(?>(?:[^*]|\*(?!/))*)(\*/|\Z)|'(?>(?:[^']|'')*)('|\Z)|\"(?>(?:[^\"]|\"\")*)(\"|\Z)",
        text,
    ):
        at = match.start()
        if not match[0].startswith("--") and not any(match.groups()):
            break
    else:
        return InvalidStatementError("the statement cannot be read", text, 0)
    return InvalidStatementError("what begins here is not closed", text, at)


class _StatementReader:
    def __init__(self, text: str, tokens: Sequence[Token]) -> None:
        self._at = Cursor(text, tokens)

    def statement(self) -> Statement:
        at = self._at
        first = at.next_token
        if first is None:
            raise at.error(
                "there is no statement",
                next_step=_BEGINNINGS,
            )
        statement: Statement
        if at.accept("CREATE"):
            statement = CreateIndex(*CreateReader(at).read())
        elif at.accept("ALTER"):
            statement = self._alter()
        elif at.accept("DROP"):
            statement = self._drop()
        elif at.accept("BUILD"):
            statement = self._build()
        elif at.peek("EXPLAIN") or at.peek("SELECT"):
            word = first.text.upper()
            raise QueryElsewhereError(
                f"{word} is answered by the indexer nodes, not by the coordinator",
                self._at.text,
                first.start,
                first.end + 1,
                next_step="POST /v1/query on a node, or `keytide sql`.",
            )
        else:
            raise at.error(
                f"{first.text!r} begins no statement",
                next_step=_BEGINNINGS,
            )
        while at.accept(";"):
            pass
        if at.next_token is not None:
            raise at.error(
                f"{at.next_token.text!r} does not fit here", next_step="Send one statement at a time."
            )
        return statement

    def _alter(self) -> Alteration | RenameIndex:
        at = self._at
        at.expect("INDEX")
        name = index_name(at)
        if at.accept("RENAME"):
            at.expect("TO", next_step="Write ALTER INDEX name RENAME TO other.")
            return RenameIndex(name, index_name(at))
        if at.accept("SPLIT"):
            return self._split(name)
        if at.accept("MERGE"):
            at.expect("PARTITIONS", next_step="Write ALTER INDEX name MERGE PARTITIONS 2, 3.")
            return MergePartitions(name, self._partition_number(), self._partition_number(","))
        partition = None
        if at.accept("PARTITION", "BY"):
            partition, _ = PartitionReader(at).read()
        elif at.accept("PARTITION"):
            return self._spread(name)
        if partition is None or at.peek("SET") or at.peek("WITH"):
            return self._set(name, partition)
        return self._altered(name, partition, None, None)

    def _set(self, name: str, partition: PartitionBy | None) -> AlterIndex:
        """What stands from SET on."""
        at = self._at
        at.expect("SET", next_step=_ALTER)
        replicas, auto_split, slices, partitions = None, None, None, None
        for option, said, value, token in options(at):
            if option == "replicas":
                replicas = whole_number(at, token, value, 0, MAX_REPLICAS)
            elif option == "slices":
                slices = WrittenNumber(whole_number(at, token, value, 1, MAX_SLICES), token)
            elif option == "partitions":
                partitions = WrittenNumber(whole_number(at, token, value, 1, MAX_SLICES), token)
            elif option == "auto_split":
                auto_split = boolean(at, token, value)
            elif option in OPTIONS:
                raise at.error(
                    f"{said.text} is said when an index is made, and stays",
                    said,
                    next_step="Say it in CREATE OR REPLACE INDEX, which makes it anew while it serves.",
                )
            else:
                step = did_you_mean(
                    option,
                    ALTERABLE,
                    "Of an index that there is, slices, partitions, replicas and auto_split can be changed.",
                )
                raise at.error(f"there is no option {said.text}", said, next_step=step)
        made = self._altered(name, partition, slices, partitions)
        return replace(made, replicas=replicas, auto_split=auto_split)

    def _altered(
        self,
        name: str,
        partition: PartitionBy | None,
        slices: WrittenNumber | None,
        partitions: WrittenNumber | None,
    ) -> AlterIndex:
        """Other slices, by what stands in the statement."""
        if partition is None:
            if slices is not None and partitions is not None:
                raise self._at.error(
                    "slices and partitions contradict each other",
                    partitions.at,
                    next_step="Say slices=n where each partition is one slice, else partitions=n.",
                )
            return AlterIndex(
                name,
                slices=None if slices is None else slices.number,
                partitions=None if partitions is None else partitions.number,
            )
        made = partitions_by(self._at, partition, slices, partitions)
        if partition.spreads:
            return AlterIndex(name, partition=partition, partitions=made)
        return AlterIndex(name, partition=partition, slices=made)

    def _spread(self, name: str) -> SpreadPartition:
        """What stands behind PARTITION, of how many slices it is to be."""
        at, step = self._at, "Write ALTER INDEX name PARTITION 2 SET (slices=4)."
        number = self._partition_number()
        at.expect("SET", next_step=step)
        slices: int | None = None
        for option, said, value, token in options(at):
            if option != "slices":
                raise at.error(f"{said.text} cannot be said of a partition", said, next_step=step)
            slices = whole_number(at, token, value, 1, MAX_SLICES)
        if slices is None:
            raise at.error("it is not said of how many slices it is to be", next_step=step)
        return SpreadPartition(name, number, slices)

    def _split(self, name: str) -> SplitPartition:
        at = self._at
        at.expect("PARTITION", next_step="Write ALTER INDEX name SPLIT PARTITION 2 AT (value, ...).")
        number = self._partition_number()
        return SplitPartition(name, number, PartitionReader(at).splits() if at.accept("AT") else ())

    def _partition_number(self, behind: str = "") -> int:
        """The number of a partition that stands here, behind some word."""
        at = self._at
        if behind:
            at.expect(behind, next_step="Name two neighbours, as in MERGE PARTITIONS 2, 3.")
        (token, *more) = at.name("the number of a partition")
        return whole_number(at, token, token.text if not more else "", 0, MAX_SLICES - 1)

    def _drop(self) -> DropIndex:
        self._at.expect("INDEX")
        refuse(self._at, "CONCURRENTLY", "CONCURRENTLY is not needed: DROP INDEX never stops writes")
        if_exists = self._at.accept("IF", "EXISTS")
        name = index_name(self._at)
        refuse(self._at, "CASCADE", "CASCADE is not needed: nothing depends on an index")
        refuse(self._at, "RESTRICT", "RESTRICT is not needed: nothing depends on an index")
        return DropIndex(name, if_exists)

    def _build(self) -> BuildIndex:
        at = self._at
        at.expect("INDEX")
        at.expect("ON", next_step="Write BUILD INDEX ON keyspace (name, ...).")
        keyspace = keyspace_name(self._at)
        names: list[str] = []
        for tokens in at.parenthesised("the name of an index"):
            name = at.joined(tokens)
            check_index_name(self._at, name, tokens)
            if name in names:
                raise at.error(f"{name} stands twice", tokens)
            names.append(name)
        return BuildIndex(keyspace, tuple(names))
