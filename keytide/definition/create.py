"""CREATE INDEX: its frame, clauses and options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from sqlglot.tokenizer_core import Token, TokenType

from keytide.collation import encode_part
from keytide.definition.errors import quoted_wrongly
from keytide.definition.expression import (
    DocumentId,
    Literal,
    Node,
    Path,
    Predicate,
    Unnest,
    depth,
    same,
    walk,
)
from keytide.definition.index import (
    DEFAULT_SLICES,
    MAX_INCLUDED,
    MAX_KEY_PARTS,
    MAX_REPLICAS,
    MAX_SLICES,
    MAX_SPLIT_BYTES,
    IndexDefinition,
    KeyPart,
    PartitionBy,
    PartitionKind,
)
from keytide.definition.names import index_name, keyspace_name, refuse, structure_name
from keytide.definition.render import path_name, render_expression
from keytide.definition.sql import ExpressionReader
from keytide.definition.tokens import Cursor
from keytide.model.hints import did_you_mean

_MAX_NODES: Final = 10_000
_MAX_DEPTH: Final = 50
OPTIONS: Final = ("slices", "replicas", "defer_build", "include_missing", "auto_split")
_CLAUSES: Final = ("INCLUDE", "PARTITION BY", "WITH", "WHERE")


class _Clauses:
    """What the clauses after the column list say."""

    def __init__(self) -> None:
        self.include: tuple[Path, ...] = ()
        self.partition: PartitionBy | None = None
        self.partition_said: Sequence[Token] = ()
        self.where: Predicate | None = None
        self.slices = DEFAULT_SLICES
        self.slices_said: Token | None = None
        self.replicas = 0
        self.said: set[str] = set()
        self.include_missing = False
        self.defer_build = False
        self.auto_split = False


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
        by = clauses.partition or PartitionBy("hash", keys[0].expression)
        definition = IndexDefinition(
            name=name,
            keyspace=keyspace,
            statement=self._at.text.strip(),
            keys=keys,
            partition=by.expression,
            include=clauses.include,
            where=clauses.where,
            slices=clauses.slices,
            replicas=clauses.replicas,
            unique=unique,
            include_missing=clauses.include_missing,
            defer_build=clauses.defer_build,
            partition_kind=by.kind,
            given_splits=by.splits,
            auto_split=True if clauses.auto_split else msgspec.UNSET,
            structure_name=msgspec.UNSET if using == "btree" else using,
        )
        self._validate(definition, columns)
        if wrong := definition.structure.fault():
            raise at.error(wrong[0], columns, next_step=wrong[1])
        if fault := definition.partition_fault:
            said = clauses.partition_said if definition.unique else columns
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
        if clauses.partition is not None and clauses.partition.splits:
            said = clauses.slices if clauses.slices_said is not None else None
            clauses.slices = slices_by(at, clauses.partition, said, clauses.slices_said)
            clauses.said.add("slices")
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
                clauses.slices = whole_number(self._at, at, value, 1, MAX_SLICES)
                clauses.slices_said = at
            elif name == "replicas":
                clauses.replicas = whole_number(self._at, at, value, 0, MAX_REPLICAS)
            elif name == "defer_build":
                clauses.defer_build = boolean(self._at, at, value)
            elif name == "include_missing":
                clauses.include_missing = boolean(self._at, at, value)
            elif name == "auto_split":
                clauses.auto_split = boolean(self._at, at, value)
            else:
                raise self._at.error(
                    f"there is no option {said.text}",
                    said,
                    next_step=did_you_mean(
                        name,
                        OPTIONS,
                        "There are slices, replicas, defer_build, include_missing and auto_split.",
                    ),
                )


class PartitionReader:
    """Reads what stands behind PARTITION BY, and values at which slices part."""

    def __init__(self, at: Cursor) -> None:
        self._at = at
        self._expressions = ExpressionReader(at.text)

    def read(self) -> tuple[PartitionBy, Sequence[Token]]:
        """What PARTITION BY says, and where its expression stands. The cursor is behind BY."""
        at = self._at
        kind: PartitionKind = "range" if at.accept("RANGE") else "hash"
        word = kind.upper()
        if kind == "hash":
            at.expect("HASH", next_step="Write PARTITION BY HASH(expression), RANGE(expression) or HASH(id).")
        expressions = list(at.parenthesised("an expression"))
        if len(expressions) != 1:
            raise at.error(f"{word} takes one expression", [expressions[1][0], expressions[-1][-1]])
        expression = self._expressions.expression(expressions[0])
        limit(at, expression, expressions[0])
        if not any(isinstance(node, Path | DocumentId) for node in walk(expression)):
            raise at.error(
                f"{word} must say something about the document",
                expressions[0],
                next_step=quoted_wrongly(at.text, expressions[0][0].start),
            )
        splits: tuple[Literal, ...] = ()
        if at.peek("SPLIT"):
            if kind == "hash":
                raise at.error("SPLIT AT goes with RANGE: a hash has no splits", next_step="Leave it out.")
            at.expect("SPLIT")
            at.expect("AT", next_step="Write SPLIT AT (value, ...).")
            splits = self.splits()
        return PartitionBy(kind, expression, splits), expressions[0]

    def splits(self) -> tuple[Literal, ...]:
        """The values where slices of a RANGE index part, strictly ascending in the order of keys."""
        splits: list[Literal] = []
        before = b""
        for tokens in self._at.parenthesised("a value"):
            value = self._expressions.expression(tokens)
            if not isinstance(value, Literal):
                raise self._at.error(
                    "SPLIT AT takes values: strings, numbers, TRUE, FALSE and NULL",
                    tokens,
                    next_step=quoted_wrongly(self._at.text, tokens[0].start),
                )
            code = encode_part(value.value)
            if len(code) > MAX_SPLIT_BYTES:
                raise self._at.error(f"a split takes at most {MAX_SPLIT_BYTES} bytes", tokens)
            if code <= before:
                raise self._at.error(
                    "splits must ascend, in the order of keys",
                    tokens,
                    next_step="The order is null, false, true, numbers, strings; each value once.",
                )
            if len(splits) == MAX_SLICES - 1:
                raise self._at.error(f"an index has at most {MAX_SLICES} slices", tokens)
            splits.append(value)
            before = code
        return tuple(splits)


def limit(at: Cursor, node: Node, tokens: Sequence[Token]) -> None:
    """See that what stands at some tokens is not too large."""
    if sum(1 for _ in walk(node)) > _MAX_NODES or depth(node) > _MAX_DEPTH:
        raise at.error("the expression is too large", tokens)


def slices_by(at: Cursor, by: PartitionBy, slices: int | None, place: Token | None) -> int:
    """How many slices given splits make.

    Args:
        slices: what is said of that, at `place`; None when nothing is.
    """
    made = len(by.splits) + 1
    if slices is not None and slices != made:
        raise at.error(
            f"{len(by.splits)} splits make {made} slices, not {slices}",
            place,
            next_step=f"Leave slices out, or write slices={made}.",
        )
    return made


def options(at: Cursor) -> Iterator[tuple[str, Token, str, Token]]:
    """The options of `(name=value, ...)`, each once: name (in lower case) and where it stands, value (the
    same) and where it does."""
    seen: set[str] = set()
    for tokens in at.parenthesised("an option, as in slices=8"):
        name = tokens[0].text.lower()
        if len(tokens) == 1:
            value, place = "true", tokens[0]  # as PostgreSQL reads an option without a value
        elif len(tokens) == 3 and tokens[1].token_type == TokenType.EQ:
            value, place = tokens[2].text.lower(), tokens[2]
        else:
            raise at.error("an option is name=value", tokens)
        if name in seen:
            raise at.error(f"{name} stands twice", tokens[0])
        seen.add(name)
        yield name, tokens[0], value, place


def whole_number(at: Cursor, token: Token, value: str, low: int, high: int) -> int:
    """The number that stands at a token, of those from `low` to `high`."""
    if not re.fullmatch("[0-9]{1,9}", value) or not low <= int(value) <= high:
        raise at.error(f"this must be a whole number from {low} to {high}", token)
    return int(value)


def boolean(at: Cursor, token: Token, value: str) -> bool:
    """What stands at a token, as true or false."""
    if value not in ("true", "on", "false", "off"):
        raise at.error("this must be true or false", token)
    return value in ("true", "on")
