"""What queries write that definitions do not: aggregates, `= ANY(array)`, aliases, positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, get_args
from typing import Literal as OneOf

import msgspec
from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from keytide.definition.errors import InvalidStatementError
from keytide.definition.expression import Comparison, Expression, Literal, Path, Predicate, Unnest
from keytide.definition.render import column_sql, path_name
from keytide.definition.sql import ExpressionReader, WrittenConstants
from keytide.definition.tokens import Cursor

AggregateName = OneOf["count", "sum", "min", "max", "avg"]
"""The aggregates there are, in SQL and in `POST /v1/indexes/{name}/aggregate`."""
FUNCTIONS: Final[dict[str, AggregateName]] = {name.upper(): name for name in get_args(AggregateName)}


class AggregateCall(msgspec.Struct, frozen=True):
    """A function of all rows of a group: `operand` is None for COUNT(*); `distinct` is COUNT's only."""

    function: AggregateName
    operand: Expression | None = None
    distinct: bool = False


class QueryReader(ExpressionReader):
    """Reads the expressions of one query.

    Attributes:
        memberships: the `= ANY` found, each as the comparison that stands for it, and where it stands.
    """

    aggregates = tuple(FUNCTIONS)

    def __init__(self, text: str, lists: Mapping[int, WrittenConstants]) -> None:
        """
        Args:
            lists: long ones (`keytide.query.parse.long_lists`).
        """
        super().__init__(text)
        self._lists = lists
        self.memberships: list[tuple[Comparison, exp.Expr]] = []

    def misplaced(self, node: exp.Expr, reason: str, next_step: str) -> InvalidStatementError:
        """An error at one of `memberships`."""
        return self._error(reason, node, next_step)

    def _predicate(self, node: exp.Expr) -> Predicate:
        if isinstance(node, exp.Binary) and (
            isinstance(node.this, exp.Any) or isinstance(node.expression, exp.Any)
        ):
            return self._membership(node)
        return super()._predicate(node)

    def _membership(self, node: exp.Binary) -> Predicate:
        if not isinstance(node, exp.EQ):
            raise self._error("ANY goes with = only", node, "Write 'value' = ANY(tags).")
        if isinstance(node.this, exp.Any):
            raise self._error("ANY stands on the right side", node, "Write 'value' = ANY(tags).")
        value, array = self._expression(node.this), self._expression(node.expression.this)
        if not isinstance(value, Literal) or value.value is None:
            raise self._error("= ANY compares a constant", node.this, "Write 'value' = ANY(tags).")
        if not isinstance(array, Path):
            raise self._error("ANY takes a path to an array", node.expression)
        found = Comparison("=", Unnest(array), value)
        self.memberships.append((found, node))
        return found

    def _refusal(self, node: exp.Expr) -> InvalidStatementError:
        if isinstance(node, exp.Func):
            names = [node.name] if isinstance(node, exp.Anonymous) else node.sql_names()
            if name := next((one.upper() for one in names if one.upper() in FUNCTIONS), None):
                return self._error(
                    f"{name} cannot stand here",
                    node,
                    "Aggregates stand by themselves in the list behind SELECT and in ORDER BY.",
                )
        if isinstance(node, exp.Any):
            return self._error("ANY stands in WHERE, as in 'value' = ANY(tags)", node)
        return super()._refusal(node)


def read_item(at: Cursor, reader: QueryReader, tokens: Sequence[Token]) -> Expression | AggregateCall:
    """An expression or an aggregate of one."""
    function = FUNCTIONS.get(tokens[0].text.upper())
    quoted = tokens[0].token_type == TokenType.IDENTIFIER
    called = len(tokens) > 2 and tokens[1].token_type == TokenType.L_PAREN
    if function is None or quoted or not called or _closing(tokens) != len(tokens) - 1:
        return reader.expression(tokens)
    inside = tokens[2:-1]
    if len(inside) == 1 and inside[0].token_type == TokenType.STAR:
        if function != "count":
            raise at.error(f"{function.upper()} takes an expression, not *", inside[0])
        return AggregateCall("count")
    if not inside:
        raise at.error(f"{function.upper()} takes an expression", tokens)
    distinct = inside[0].token_type == TokenType.DISTINCT
    if distinct and function != "count":
        raise at.error(
            f"DISTINCT does not go with {function.upper()}",
            inside[0],
            next_step="MIN and MAX are the same without it; COUNT takes it.",
        )
    if distinct and len(inside) == 1:
        raise at.error("COUNT(DISTINCT ...) takes an expression", tokens)
    return AggregateCall(function, reader.expression(inside[distinct:]), distinct)


def _closing(tokens: Sequence[Token]) -> int:
    """Where the parenthesis that opens as the second token closes."""
    open_ = 0
    for position, token in enumerate(tokens[1:], 1):
        open_ += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if not open_:
            return position
    return -1


def split_alias(at: Cursor, tokens: Sequence[Token]) -> tuple[Sequence[Token], str]:
    """The tokens before AS, and the name behind it, "" without."""
    open_ = 0
    for position, token in enumerate(tokens):
        open_ += token.token_type == TokenType.L_PAREN
        open_ -= token.token_type == TokenType.R_PAREN
        if token.token_type != TokenType.ALIAS or open_:
            continue
        name = tokens[position + 1 :]
        if position == 0 or len(name) != 1 or name[0].token_type in _NO_NAMES:
            raise at.error("AS is followed by one name", tokens[position:])
        return tokens[:position], name[0].text
    return tokens, ""


_NO_NAMES: Final = (TokenType.NUMBER, TokenType.STRING, TokenType.STAR, TokenType.L_PAREN, TokenType.R_PAREN)


def column_name(value: Expression | AggregateCall) -> str:
    """What a column without an alias is called."""
    if isinstance(value, AggregateCall):
        inside = "*" if value.operand is None else column_sql(value.operand)
        return f"{value.function.upper()}({'DISTINCT ' if value.distinct else ''}{inside})"
    if isinstance(value, Path):
        name = path_name(value)
        return name if name != "id" else '"id"'
    return column_sql(value)
