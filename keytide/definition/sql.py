"""SQL expressions to our own: sqlglot parses, and what it found is taken over node by node or refused by
name, at its place.

The dialect is PostgreSQL's, except that positions in arrays count from 0, as in JSON, and that identifiers
keep their case, quoted or not, because the names in documents do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from sqlglot import exp
from sqlglot.errors import ParseError
from sqlglot.tokenizer_core import Token, TokenType

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
from keytide.definition.values import COMPARISONS, Dialect, ValueReader, number

LONG_LIST: Final = 50
"""Constants behind IN: of so many sqlglot parses the first one only. It takes 15 microseconds for each, and a
query may have thousands of them."""
_CONSTANTS: Final = (TokenType.NUMBER, TokenType.STRING)


class ExpressionReader(ValueReader):
    """Reads expressions of one statement; raises `InvalidStatementError` with the place in `text`."""

    _lists: Mapping[int, Sequence[Token]] = MappingProxyType({})

    def expression(self, tokens: Sequence[Token]) -> Expression:
        """The value expression that `tokens` say."""
        return self._guarded(tokens, wants_condition=False)  # type: ignore[return-value]

    def predicate(self, tokens: Sequence[Token]) -> Predicate:
        """The condition that `tokens` say."""
        return self._guarded(tokens, wants_condition=True)  # type: ignore[return-value]

    def _guarded(self, tokens: Sequence[Token], *, wants_condition: bool) -> Expression | Predicate:
        self._start, self._end = tokens[0].start, tokens[-1].end + 1
        tokens, self._lists = _shortened(tokens)
        parser = Dialect().parser(error_message_context=len(self._text))
        try:
            parsed = parser.parse_into(exp.Condition, tokens, self._text)
            if len(parsed) != 1 or parsed[0] is None:
                raise self._error("this is no expression")
            return self._predicate(parsed[0]) if wants_condition else self._expression(parsed[0])
        except ParseError as error:
            raise self._syntax_error(error) from error
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
        return Truth(self._expression(node))

    def _negated(self, node: exp.Expr, predicate: Predicate) -> Predicate:
        return Not(predicate) if node.args.get("negate") else predicate

    def _in(self, node: exp.In) -> Predicate:
        if not node.expressions or any(node.args.get(name) for name in ("query", "unnest", "field")):
            raise self._error("IN takes a list of values in parentheses", node)
        listed = self._lists.get(node.expressions[0].meta.get("start", -1), ())
        choices: tuple[Expression, ...] = tuple(map(self._listed, listed))
        choices = choices or tuple(map(self._expression, node.expressions))
        return self._negated(node, In(self._expression(node.this), choices))

    def _listed(self, token: Token) -> Literal:
        try:
            return Literal(token.text if token.token_type == TokenType.STRING else number(token.text))
        except ValueError as error:
            raise InvalidStatementError(str(error), self._text, token.start, token.end + 1) from None

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


def _shortened(tokens: Sequence[Token]) -> tuple[list[Token], dict[int, Sequence[Token]]]:
    """The tokens with one constant in place of each long list of them behind IN, and the lists by the place
    of that one."""
    kept: list[Token] = []
    lists: dict[int, Sequence[Token]] = {}
    at = 0
    while at < len(tokens):
        kept.append(tokens[at])
        at += 1
        if (
            at > 1
            and tokens[at - 1].token_type == TokenType.L_PAREN
            and tokens[at - 2].token_type == TokenType.IN
        ):
            listed = tokens[at : _list_end(tokens, at) : 2]
            if len(listed) >= LONG_LIST:
                kept.append(listed[0])
                lists[listed[0].start] = listed
                at += 2 * len(listed) - 1
    return kept, lists


def _list_end(tokens: Sequence[Token], at: int) -> int:
    """Where a list that begins here and has constants alone is closed; `at` when none does."""
    begin = at
    while at + 1 < len(tokens) and tokens[at].token_type in _CONSTANTS:
        if tokens[at + 1].token_type == TokenType.R_PAREN:
            return at + 1
        if tokens[at + 1].token_type != TokenType.COMMA:
            break
        at += 2
    return begin
