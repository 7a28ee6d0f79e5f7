"""PARTITION BY and SUBPARTITION BY, as CREATE INDEX and ALTER INDEX have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from sqlglot.tokenizer_core import Token

from keytide.collation import encode_part
from keytide.definition.clauses.options import limit, whole_number
from keytide.definition.errors import quoted_wrongly
from keytide.definition.expression import DocumentId, Literal, Path, walk
from keytide.definition.index import MAX_SLICES, MAX_SPLIT_BYTES, PartitionBy, PartitionKind
from keytide.definition.sql import ExpressionReader
from keytide.definition.tokens import Cursor

_SUBPARTITION: Final = "Write SUBPARTITION BY HASH(id) SLICES 3, or for each partition, SLICES (3, 1, 4)."


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
            splits = self.splits(equal=True)
        slices, each = self._subpartitions(splits)
        return PartitionBy(kind, expression, splits, slices, each), expressions[0]

    def splits(self, *, equal: bool = False) -> tuple[Literal, ...]:
        """The values where partitions of a RANGE index part, ascending in the order of keys.

        Args:
            equal: some may be equal: a partition between two of them is empty. (A build makes such splits
                where it has no use for all, and an index that was altered since says them.)
        """
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
            if code < before or (code == before and not equal):
                once = "" if equal else "; each value once"
                raise self._at.error(
                    "splits must ascend, in the order of keys",
                    tokens,
                    next_step=f"The order is null, false, true, numbers, strings{once}.",
                )
            if len(splits) == MAX_SLICES - 1:
                raise self._at.error(f"an index has at most {MAX_SLICES} slices", tokens)
            splits.append(value)
            before = code
        return tuple(splits)

    def _subpartitions(self, splits: Sequence[Literal]) -> tuple[tuple[int, ...], int]:
        """What SUBPARTITION BY says, if it stands here: the list, or the number."""
        at = self._at
        if not at.accept("SUBPARTITION"):
            return (), 0
        at.expect("BY", next_step=_SUBPARTITION)
        at.expect("HASH", next_step=_SUBPARTITION)
        by = list(at.parenthesised("id"))
        if len(by) != 1 or self._expressions.expression(by[0]) != DocumentId():
            raise at.error("a partition is spread by the document id", by[0], next_step=_SUBPARTITION)
        at.expect("SLICES", next_step=_SUBPARTITION)
        if not at.peek("("):
            (token, *more) = at.name("how many slices a partition has")
            return (), whole_number(at, token, token.text if not more else "", 1, MAX_SLICES)
        runs = list(at.parenthesised("how many slices a partition has"))
        slices = [
            whole_number(at, token, token.text if not more else "", 1, MAX_SLICES) for token, *more in runs
        ]
        if splits and len(slices) != len(splits) + 1:
            raise at.error(
                f"{len(splits)} splits make {len(splits) + 1} partitions, and SLICES lists {len(slices)}",
                [runs[0][0], runs[-1][-1]],
                next_step=f"List {len(splits) + 1} numbers, or say one for all: SLICES 3.",
            )
        return tuple(slices), 0


class WrittenNumber(msgspec.Struct, frozen=True):
    """A number that a statement says, and where."""

    number: int
    at: Token


def partitions_by(
    at: Cursor, by: PartitionBy, slices: WrittenNumber | None, partitions: WrittenNumber | None
) -> int | None:
    """How many partitions what stands in a statement makes; None when it does not say.

    Args:
        slices, partitions: what it says in its options.

    Raises:
        InvalidStatementError: it contradicts itself.
    """
    if by.spreads and slices is not None:
        raise at.error(
            "SLICES says of how many slices partitions are",
            slices.at,
            next_step="Leave slices out; partitions=n says how many partitions there are.",
        )
    said = partitions if by.spreads else slices
    if partitions is not None and not by.spreads:
        raise at.error(
            "partitions goes with SUBPARTITION BY: without it a partition is one slice",
            partitions.at,
            next_step=f"Write slices={partitions.number}.",
        )
    made = len(by.splits) + 1 if by.splits else len(by.slices) or None
    if made is None or said is None:
        return made if said is None else said.number
    name = "partitions" if by.spreads else "slices"
    if said.number != made:
        what = f"{len(by.splits)} splits make" if by.splits else "SLICES lists"
        raise at.error(
            f"{what} {made} {name}, not {said.number}",
            said.at,
            next_step=f"Leave {name} out, or write {name}={made}.",
        )
    return made
