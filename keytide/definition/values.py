"""Value expressions of sqlglot's tree to our own."""

from __future__ import annotations

import math
from typing import ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.tokenizer_core import TokenType

from keytide.definition.errors import InvalidStatementError
from keytide.definition.expression import (
    Binary,
    BinaryOperator,
    Call,
    Cast,
    ComparisonOperator,
    DocumentId,
    Expression,
    FunctionName,
    Literal,
    Negate,
    Path,
    TypeName,
    Unnest,
)
from keytide.model.hints import did_you_mean


class Dialect(Postgres):
    """PostgreSQL with JSON's array positions, and no types of types, nor constructors: list[0] and range < 5
    are of fields."""

    INDEX_OFFSET = 0

    class Tokenizer(Postgres.Tokenizer):
        COMMANDS: ClassVar[set[TokenType]] = set()
        """Words behind which all that follows would be one string: EXPLAIN, and `lock` of lock.x."""

    class Parser(PostgresParser):
        ARRAY_CONSTRUCTORS: ClassVar = {}
        NESTED_TYPE_TOKENS: ClassVar[set[TokenType]] = set()
        STRUCT_TYPE_TOKENS: ClassVar[set[TokenType]] = set()


_FUNCTIONS: Final[dict[type[exp.Expr], FunctionName]] = {
    exp.Lower: "lower",
    exp.Upper: "upper",
    exp.Length: "length",
    exp.Coalesce: "coalesce",
}
_CALLABLE: Final = (*_FUNCTIONS.values(), "cast", "unnest")
_BINARY: Final[dict[type[exp.Expr], BinaryOperator]] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.DPipe: "||",
}
COMPARISONS: Final[dict[type[exp.Expr], ComparisonOperator]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_TYPES: Final[dict[exp.DType, TypeName]] = {
    exp.DType.TEXT: "text",
    exp.DType.VARCHAR: "text",
    exp.DType.INT: "bigint",
    exp.DType.BIGINT: "bigint",
    exp.DType.DOUBLE: "double",
    exp.DType.BOOLEAN: "boolean",
}
_CONDITIONS: Final = (
    *COMPARISONS,
    exp.And,
    exp.Or,
    exp.Not,
    exp.In,
    exp.Between,
    exp.Like,
    exp.Escape,
    exp.Is,
)
_INSTEAD: Final[dict[type[exp.Expr], str]] = {
    exp.ILike: "ILIKE is not supported: write LOWER(x) LIKE 'pattern in lower case'",
    exp.Case: "CASE is not supported in an index",
    exp.Concat: "CONCAT is not supported: write a || b",
    exp.JSONExtract: "-> is not supported: write a path, as in address.city or tags[0]",
    exp.JSONExtractScalar: "->> is not supported: write a path, as in address.city or tags[0]",
    exp.Select: "a query cannot stand here",
    exp.Subquery: "a query cannot stand here",
    exp.Star: "* cannot stand here",
    exp.Pow: "^ is not supported; there are + - * / % and ||",
    exp.RegexpLike: "~ is not supported: use LIKE",
    exp.NullSafeNEQ: "IS DISTINCT FROM is not supported",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM is not supported",
    exp.Collate: "COLLATE is not supported: strings are in the order of their code points",
    exp.Placeholder: "parameters are not supported in a statement",
    exp.Parameter: "parameters are not supported in a statement",
    exp.Interval: "intervals are not supported: JSON has no times; compare numbers or ISO 8601 strings",
}


class ValueReader:
    """Takes value expressions over; raises `InvalidStatementError` with the place in `text`.

    Attributes:
        aggregates: names that stand around expressions, where such a thing may be.
    """

    aggregates: ClassVar[tuple[str, ...]] = ()

    def __init__(self, text: str) -> None:
        self._text = text
        self._start = 0
        self._end = 0

    def _error(self, reason: str, node: exp.Expr | None = None, next_step: str = "") -> InvalidStatementError:
        """An error at `node`: at the first of its parts that sqlglot knows the place of."""
        places: list[tuple[int, int]] = []
        if node is not None:
            metas = [part.meta for part in node.walk() if "start" in part.meta]
            places = sorted((meta["start"], meta["end"] + 1) for meta in metas)
        start, end = (places[0][0], places[-1][1]) if places else (self._start, self._end)
        return InvalidStatementError(reason, self._text, start, end, next_step=next_step)

    def _expression(self, node: exp.Expr) -> Expression:
        kind = type(node)
        if isinstance(node, exp.Paren):
            return self._expression(node.this)
        if isinstance(node, exp.Column | exp.Dot | exp.Bracket):
            return self._path(node)
        if isinstance(node, exp.Literal | exp.Boolean | exp.Null):
            return Literal(self._constant(node))
        if isinstance(node, exp.Neg):
            inner = self._expression(node.this)
            if isinstance(inner, Literal) and type(inner.value) in (int, float):
                return Literal(-inner.value)  # type: ignore[operator]
            return Negate(inner)
        if kind in _BINARY:
            return Binary(_BINARY[kind], self._expression(node.this), self._expression(node.expression))
        if kind in _FUNCTIONS:
            return self._call(node, _FUNCTIONS[kind])
        if isinstance(node, exp.Cast):
            return Cast(self._expression(node.this), self._type(node))
        if isinstance(node, exp.Explode | exp.Unnest):
            return self._unnest(node)
        if isinstance(node, _CONDITIONS):
            raise self._error("a condition cannot stand here", node, "Move it to the WHERE clause.")
        raise self._refusal(node)

    def _refusal(self, node: exp.Expr) -> InvalidStatementError:
        if type(node) in _INSTEAD:
            return self._error(_INSTEAD[type(node)], node)
        if isinstance(node, exp.Func):
            name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()
            there_are = ("LOWER", "UPPER", "LENGTH", "COALESCE", "CAST", "UNNEST", *self.aggregates)
            return self._error(
                f"there is no function {name.upper()}" + ("" if self.aggregates else " for indexes"),
                node,
                did_you_mean(
                    name.upper(),
                    [*map(str.upper, _CALLABLE), *self.aggregates],
                    f"There are {', '.join(there_are)} and those of places; write a field of that name in "
                    "double quotes.",
                ),
            )
        return self._error("this is not supported in an index", node)

    def _call(self, node: exp.Expr, function: FunctionName) -> Call:
        arguments = [node.this, *node.expressions]
        if function != "coalesce" and (len(arguments) > 1 or node.args.get("encoding") is not None):
            raise self._error(f"{function.upper()} takes one argument", node)
        return Call(function, tuple(self._expression(argument) for argument in arguments))

    def _type(self, node: exp.Cast) -> TypeName:
        target = node.args["to"]
        name = (
            _TYPES.get(target.this) if isinstance(target, exp.DataType) and not target.expressions else None
        )
        if name is None:
            raise self._error(
                f"there is no type {target.sql(dialect=Dialect)} to cast to",
                node,
                "There are text, bigint, double precision and boolean.",
            )
        return name

    def _unnest(self, node: exp.Expr) -> Unnest:
        inside = [*([node.this] if node.this is not None else []), *node.expressions]
        if len(inside) != 1:
            raise self._error("UNNEST takes one path", node)
        path = self._expression(inside[0])
        if not isinstance(path, Path):
            raise self._error("UNNEST takes a path to an array", node)
        return Unnest(path)

    def _path(self, node: exp.Expr) -> Expression:
        steps: list[str | int] = []
        quoted = self._steps(node, steps)
        if steps == ["id"] and not quoted:
            return DocumentId()
        if len(steps) == 1 and str(steps[0]).upper() == "MISSING" and not quoted:
            raise self._error("MISSING is no value", node, "Write IS MISSING or IS NOT MISSING.")
        first = steps[0]
        if isinstance(first, str) and any(c in '"\\' or c < " " for c in first):
            raise self._error(
                "a field whose name has a quote, a backslash or a control character cannot be indexed",
                node,
                "Write it under another name too.",
            )
        return Path(tuple(steps))

    def _steps(self, node: exp.Expr, steps: list[str | int]) -> bool:
        """Append the steps of a path; returns whether the first is quoted."""
        if isinstance(node, exp.Column):
            parts = [node.args.get(name) for name in ("catalog", "db", "table", "this")]
            identifiers = [part for part in parts if part is not None]
            for identifier in identifiers:
                steps.append(self._name(identifier))
            return bool(identifiers[0].args.get("quoted"))
        if isinstance(node, exp.Dot):
            quoted = self._steps(node.this, steps)
            steps.append(self._name(node.expression))
            return quoted
        if isinstance(node, exp.Bracket):
            quoted = self._steps(node.this, steps)
            if not quoted and len(steps) == 1 and str(steps[0]).upper() == "ARRAY":
                step = 'Write "array"[0] for what a field of that name has.'
                raise self._error("there is no ARRAY[...] in indexes", node, step)
            at = node.expressions
            if (
                len(at) != 1
                or not isinstance(at[0], exp.Literal)
                or not at[0].this.isdigit()
                or at[0].is_string
            ):
                raise self._error("a position in an array is one number, counted from 0", node)
            if len(at[0].this) > 9:
                raise self._error("no array is that long", node)
            steps.append(int(at[0].this))
            return quoted
        if isinstance(node, exp.Explode | exp.Unnest):
            raise self._error(
                "a path cannot go on behind UNNEST",
                node,
                "Write the values to index into an array of their own.",
            )
        raise self._error("a path is made of names and positions, as in address.city or tags[0]", node)

    def _name(self, node: exp.Expr) -> str:
        if not isinstance(node, exp.Identifier):
            raise self._error("a path is made of names and positions, as in address.city or tags[0]", node)
        return node.name

    def _constant(self, node: exp.Expr) -> bool | int | float | str | None:
        if isinstance(node, exp.Null):
            return None
        if isinstance(node, exp.Boolean):
            return bool(node.this)
        if node.args.get("is_string"):
            return str(node.this)
        try:
            return number(str(node.this))
        except ValueError as error:
            raise self._error(str(error), node) from None


def number(written: str) -> int | float:
    """A number as it is written in SQL.

    Raises:
        ValueError: says why it is none that can be stored.
    """
    try:
        value = int(written) if written.isdigit() else float(written)
    except ValueError:  # of digits alone: more than Python reads
        raise ValueError("this number is too large" if written.isdigit() else "this is no number") from None
    if isinstance(value, float) and not math.isfinite(value):  # an int may be longer than any float
        raise ValueError("this number is too large")
    return value
