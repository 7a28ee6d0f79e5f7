"""SQL expressions to our own: sqlglot parses, and what it found is taken over node by node or refused by
name, at its place.

The dialect is PostgreSQL's, except that positions in arrays count from 0, as in JSON, and that identifiers
keep their case, quoted or not, because the names in documents do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from sqlglot import exp
from sqlglot.errors import ParseError
from sqlglot.tokenizer_core import Token

from keytide.definition.errors import InvalidStatementError
from keytide.definition.expression import (
    And,
    Comparison,
    Expression,
    In,
    IsMissing,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Predicate,
    Truth,
)
from keytide.definition.semantics import LikePattern
from keytide.definition.spatial.reading import PlaceReader
from keytide.definition.values import COMPARISONS, Dialect, number

WrittenConstants = Sequence[tuple[int, str]]
"""Constants as they are written, each with its place."""


class ExpressionReader(PlaceReader):
    """Reads expressions of one statement; raises `InvalidStatementError` with the place in `text`."""

    _lists: Mapping[int, WrittenConstants] = MappingProxyType({})
    """Lists behind IN of which the tokens have the first constant only, by the place of that one."""

    def expression(self, tokens: Sequence[Token]) -> Expression:
        """The value expression that `tokens` say."""
        return self._guarded(tokens, wants_condition=False)  # type: ignore[return-value]

    def predicate(self, tokens: Sequence[Token]) -> Predicate:
        """The condition that `tokens` say."""
        return self._guarded(tokens, wants_condition=True)  # type: ignore[return-value]

    def _guarded(self, tokens: Sequence[Token], *, wants_condition: bool) -> Expression | Predicate:
        self._start, self._end = tokens[0].start, tokens[-1].end + 1
        parser = Dialect().parser(error_message_context=len(self._text))
        try:
            parsed = parser.parse_into(exp.Condition, list(tokens), self._text)
            if len(parsed) != 1 or parsed[0] is None:
                raise self._error("this is no expression")
            return self._predicate(parsed[0]) if wants_condition else self._expression(parsed[0])
        except ParseError as error:
            raise self._syntax_error(error) from error
        except ValueError as error:  # what sqlglot says of "", where it takes a name for an alias
            raise self._error("this is no expression") from error
        except RecursionError as error:
            raise self._error("the expression is nested too deeply") from error

    def _syntax_error(self, error: ParseError) -> InvalidStatementError:
        found = error.errors[0] if error.errors else {}
        start = len(str(found.get("start_context") or ""))
        highlight = str(found.get("highlight") or "")
        if not self._start <= start < self._end:
            start, highlight = self._start, ""
        if highlight and "Unexpected" in str(found.get("description")):
            reason = f"{highlight!r} does not fit here"
        else:
            reason = str(found.get("description") or "this is no expression")
            reason = (
                "something is missing here"
                if "Required keyword" in reason
                else reason[0].lower() + reason[1:]
            )
        return InvalidStatementError(reason, self._text, start, start + max(1, len(highlight)))

    def _predicate(self, node: exp.Expr) -> Predicate:
        kind = type(node)
        if isinstance(node, exp.Paren):
            return self._predicate(node.this)
        if isinstance(node, exp.And | exp.Or):
            operands = tuple(self._predicate(operand) for operand in node.flatten(unnest=False))
            return And(operands) if isinstance(node, exp.And) else Or(operands)
        if isinstance(node, exp.Not):
            return Not(self._predicate(node.this))
        if kind in COMPARISONS:
            return Comparison(
                COMPARISONS[kind], self._expression(node.this), self._expression(node.expression)
            )
        if isinstance(node, exp.Between):
            operand = self._expression(node.this)
            if node.args.get("symmetric"):
                raise self._error("BETWEEN SYMMETRIC is not supported", node)
            low, high = self._expression(node.args["low"]), self._expression(node.args["high"])
            return self._negated(node, And((Comparison(">=", operand, low), Comparison("<=", operand, high))))
        if isinstance(node, exp.In):
            return self._in(node)
        if isinstance(node, exp.Like):
            return self._like(node, node.expression, "\\")
        if isinstance(node, exp.Escape) and isinstance(node.this, exp.Like):
            escape = self._expression(node.expression)
            if not isinstance(escape, Literal) or not isinstance(escape.value, str) or len(escape.value) > 1:
                raise self._error("ESCAPE takes one character", node.expression)
            return self._like(node.this, node.this.expression, escape.value)
        if isinstance(node, exp.Is):
            return self._is(node)
        return self._relation(node) or Truth(self._expression(node))

    def _negated(self, node: exp.Expr, predicate: Predicate) -> Predicate:
        return Not(predicate) if node.args.get("negate") else predicate

    def _in(self, node: exp.In) -> Predicate:
        if not node.expressions or any(node.args.get(name) for name in ("query", "unnest", "field")):
            raise self._error("IN takes a list of values in parentheses", node)
        listed = self._lists.get(node.expressions[0].meta.get("start", -1), ())
        choices: tuple[Expression, ...] = tuple(map(self._listed, listed))
        choices = choices or tuple(map(self._expression, node.expressions))
        return self._negated(node, In(self._expression(node.this), choices))

    def _listed(self, constant: tuple[int, str]) -> Literal:
        start, written = constant
        if written[0] == "'":
            return Literal(written[1:-1].replace("''", "'"))
        try:
            return Literal(number(written))
        except ValueError as error:
            raise InvalidStatementError(str(error), self._text, start, start + len(written)) from None

    def _like(self, node: exp.Like, pattern: exp.Expr, escape: str) -> Predicate:
        if not isinstance(pattern, exp.Literal) or not pattern.is_string:
            raise self._error("LIKE takes a pattern in quotes", pattern)
        try:
            LikePattern(pattern.this, escape)
        except ValueError as error:
            raise self._error(str(error), pattern) from error
        return self._negated(node, Like(self._expression(node.this), str(pattern.this), escape))

    def _is(self, node: exp.Is) -> Predicate:
        operand, what = self._expression(node.this), node.expression
        if isinstance(what, exp.Null):
            return self._negated(node, IsNull(operand))
        if (
            isinstance(what, exp.Column)
            and what.name.upper() == "MISSING"
            and not what.this.args.get("quoted")
        ):
            return self._negated(node, IsMissing(operand))
        raise self._error("IS takes [NOT] NULL or [NOT] MISSING", node)
