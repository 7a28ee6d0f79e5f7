"""CREATE INDEX: its frame, clauses and options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from sqlglot.tokenizer_core import Token, TokenType

from keytide.definition.clauses.options import boolean, limit, options, whole_number
from keytide.definition.clauses.partitioning import PartitionReader, WrittenNumber, partitions_by
from keytide.definition.errors import quoted_wrongly
from keytide.definition.expression import DocumentId, Path, Predicate, Unnest, same, walk
from keytide.definition.index import (
    DEFAULT_SLICES,
    MAX_INCLUDED,
    MAX_KEY_PARTS,
    MAX_REPLICAS,
    MAX_SLICES,
    IndexDefinition,
    KeyPart,
    PartitionBy,
    slices_of,
)
from keytide.definition.names import index_name, keyspace_name, refuse, structure_name
from keytide.definition.render import path_name, render_expression
from keytide.definition.sql import ExpressionReader
from keytide.definition.tokens import Cursor
from keytide.model.hints import did_you_mean
from keytide.structure import DEFAULT_STRUCTURE, STRUCTURES, Wishes
from keytide.structure.spatial import GEOGRAPHIC_SRID, PLANAR_SRID

OPTIONS: Final = ("slices", "partitions", "replicas", "defer_build", "include_missing", "auto_split", "srid")
_SYSTEMS: Final = (str(GEOGRAPHIC_SRID), str(PLANAR_SRID))
_CLAUSES: Final = ("INCLUDE", "PARTITION BY", "WITH", "WHERE")


class _Clauses:
    """What the clauses after the column list say."""

    def __init__(self) -> None:
        self.include: tuple[Path, ...] = ()
        self.partition: PartitionBy | None = None
        self.partition_said: Sequence[Token] = ()
        self.where: Predicate | None = None
        self.slices: WrittenNumber | None = None
        self.partitions: WrittenNumber | None = None
        self.replicas = 0
        self.said: set[str] = set()
        self.include_missing = False
        self.defer_build = False
        self.auto_split = False
        self.srid: WrittenNumber | None = None


class CreateReader:
    """Reads one CREATE INDEX."""

    def __init__(self, at: Cursor) -> None:
        self._at = at
        self._expressions = ExpressionReader(at.text)
        self._partitions = PartitionReader(at)

    def read(self) -> tuple[IndexDefinition, bool, frozenset[str], bool]:
        """The definition, whether IF NOT EXISTS was said, which options were, and whether OR REPLACE was. The
        cursor is behind CREATE."""
        at = self._at
        or_replace = at.accept("OR")
        if or_replace:
            at.expect("REPLACE", next_step="Write CREATE OR REPLACE INDEX name ON keyspace (...).")
        unique = at.accept("UNIQUE")
        at.expect("INDEX")
        refuse(self._at, "CONCURRENTLY", "CONCURRENTLY is not needed: a build never stops writes")
        may_exist = at.next_token
        if_not_exists = at.accept("IF", "NOT", "EXISTS")
        if if_not_exists and or_replace:
            raise at.error("OR REPLACE and IF NOT EXISTS contradict each other", may_exist)
        name = index_name(self._at)
        at.expect("ON")
        keyspace = keyspace_name(self._at)
        using = structure_name(self._at)
        columns = at.next_token
        keys = tuple(self._key(part) for part in at.parenthesised("an expression"))
        clauses = self._clauses()
        by = clauses.partition or PartitionBy(
            "hash", DocumentId() if STRUCTURES[using].has_places else keys[0].expression
        )
        made = partitions_by(at, by, clauses.slices, clauses.partitions)
        clauses.said |= {"partitions"} if made is not None else set()
        clauses.said |= {"subpartition"} if by.spreads else set()
        definition = IndexDefinition(
            name=name,
            keyspace=keyspace,
            statement=self._at.text.strip(),
            keys=keys,
            partition=by.expression,
            include=clauses.include,
            where=clauses.where,
            replicas=clauses.replicas,
            unique=unique,
            include_missing=clauses.include_missing,
            defer_build=clauses.defer_build,
            partition_kind=by.kind,
            given_splits=by.splits,
            auto_split=True if clauses.auto_split else msgspec.UNSET,
            structure_name=msgspec.UNSET if using == DEFAULT_STRUCTURE else using,
            srid=0 if clauses.srid is not None and clauses.srid.number == PLANAR_SRID else msgspec.UNSET,
            **slices_of(by.spread(DEFAULT_SLICES if made is None else made)),
        )
        # (Of an index that is replaced it is known elsewhere how many partitions it has.)
        if (fault := definition.slices_fault) and not (or_replace and made is None):
            raise at.error(fault[0], clauses.partition_said, next_step=fault[1])
        self._validate(definition, columns)
        if clauses.srid is not None and not definition.structure_type.has_places:
            raise at.error("srid goes with USING spatial", clauses.srid.at, next_step="Leave it out.")
        wishes = Wishes(unique, clauses.include_missing, definition.unnest is not None)
        if wrong := definition.structure.fault(wishes):
            raise at.error(wrong[0], columns, next_step=wrong[1])
        if fault := definition.partition_fault:
            said = clauses.partition_said if definition.unique or definition.spread else columns
            raise at.error(fault[0], said, next_step=fault[1])
        return definition, if_not_exists, frozenset(clauses.said), or_replace

    def _key(self, tokens: Sequence[Token]) -> KeyPart:
        words = [token.text.upper() for token in tokens[-2:]]
        if len(words) == 2 and words[0] == "NULLS" and words[1] in ("FIRST", "LAST"):
            raise self._at.error(
                f"NULLS {words[1]} is not supported: missing and null come first, with DESC last",
                tokens[-2:],
            )
        descending = False
        if len(tokens) > 1 and tokens[-1].token_type in (TokenType.ASC, TokenType.DESC):
            descending = tokens[-1].token_type == TokenType.DESC
            tokens = tokens[:-1]
        expression = self._expressions.expression(tokens)
        limit(self._at, expression, tokens)
        if not any(isinstance(node, Path | DocumentId) for node in walk(expression)):
            raise self._at.error(
                "a key must say something about the document",
                tokens,
                next_step=quoted_wrongly(self._at.text, tokens[0].start),
            )
        return KeyPart(expression, descending)

    def _validate(self, definition: IndexDefinition, columns: Token | None) -> None:
        """What only the whole statement shows; `columns` is where errors about the column list point."""
        if len(definition.keys) > MAX_KEY_PARTS:
            raise self._at.error(f"an index has at most {MAX_KEY_PARTS} key parts", columns)
        arrays = [n for part in definition.keys for n in walk(part.expression) if isinstance(n, Unnest)]
        if len(arrays) > 1:
            raise self._at.error(
                "an index has at most one UNNEST", columns, next_step="Make one index for each array."
            )
        for ordinal, part in enumerate(definition.keys):
            if any(same(part.expression, other.expression) for other in definition.keys[:ordinal]):
                raise self._at.error(
                    f"{render_expression(part.expression)} stands twice in the key",
                    columns,
                    next_step="Leave one out.",
                )

    # --- clauses ----------------------------------------------------------------------------------

    def _clauses(self) -> _Clauses:
        at = self._at
        clauses = _Clauses()
        seen: set[str] = set()
        while (token := at.next_token) is not None and not at.peek(";"):
            clause = next((c for c in _CLAUSES if at.accept(*c.split())), None)
            if clause is None:
                raise at.error(
                    f"{token.text!r} does not fit here",
                    next_step="After the key come INCLUDE, PARTITION BY, WITH and WHERE.",
                )
            if clause in seen:
                raise at.error(f"{clause} stands twice", token)
            seen.add(clause)
            if clause == "INCLUDE":
                clauses.include = self._include()
            elif clause == "PARTITION BY":
                clauses.partition, clauses.partition_said = self._partitions.read()
            elif clause == "WITH":
                self._options(clauses)
            else:
                clauses.where = self._where(token)
        return clauses

    def _include(self) -> tuple[Path, ...]:
        paths: list[Path] = []
        for tokens in self._at.parenthesised("a path"):
            path = self._expressions.expression(tokens)
            if isinstance(path, DocumentId):
                raise self._at.error("id need not be included: every row has it", tokens[0])
            if not isinstance(path, Path):
                raise self._at.error(
                    "INCLUDE takes paths",
                    tokens,
                    next_step=quoted_wrongly(self._at.text, tokens[0].start),
                )
            if path_name(path) in map(path_name, paths):
                raise self._at.error(f"{path_name(path)} stands twice", tokens)
            if len(paths) == MAX_INCLUDED:
                raise self._at.error(f"an index includes at most {MAX_INCLUDED} paths", tokens[0])
            paths.append(path)
        return tuple(paths)

    def _where(self, word: Token) -> Predicate:
        tokens = self._at.take_until(lambda at: any(at.peek_clause(c) for c in _CLAUSES) or at.peek(";"))
        if not tokens:
            raise self._at.error("WHERE needs a condition", word)
        predicate = self._expressions.predicate(tokens)
        limit(self._at, predicate, tokens)
        if any(isinstance(node, Unnest) for node in walk(predicate)):
            raise self._at.error("UNNEST cannot stand in WHERE", tokens)
        return predicate

    def _options(self, clauses: _Clauses) -> None:
        for name, said, value, at in options(self._at):
            clauses.said.add(name)
            if name == "slices":
                clauses.slices = WrittenNumber(whole_number(self._at, at, value, 1, MAX_SLICES), at)
            elif name == "partitions":
                clauses.partitions = WrittenNumber(whole_number(self._at, at, value, 1, MAX_SLICES), at)
            elif name == "replicas":
                clauses.replicas = whole_number(self._at, at, value, 0, MAX_REPLICAS)
            elif name == "defer_build":
                clauses.defer_build = boolean(self._at, at, value)
            elif name == "include_missing":
                clauses.include_missing = boolean(self._at, at, value)
            elif name == "auto_split":
                clauses.auto_split = boolean(self._at, at, value)
            elif name == "srid":
                if value not in _SYSTEMS:
                    raise self._at.error(
                        f"there is no system {value} here",
                        at,
                        next_step="There are 4326, longitude and latitude (the default), and 0, a plane.",
                    )
                clauses.srid = WrittenNumber(int(value), at)
            else:
                raise self._at.error(
                    f"there is no option {said.text}",
                    said,
                    next_step=did_you_mean(
                        name,
                        OPTIONS,
                        f"There are {', '.join(OPTIONS[:-1])} and {OPTIONS[-1]}.",
                    ),
                )
