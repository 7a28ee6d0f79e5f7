"""Expressions that stand alone: in a request's members, not in a statement.

They are what a statement takes, parsed by the same reader and refused with the same carets; they may say
UNNEST, which over the entries of an index is that entry's element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token

from keytide.definition.errors import InvalidStatementError
from keytide.definition.expression import Expression, depth, walk
from keytide.definition.sql import ExpressionReader
from keytide.definition.statement import unfinished
from keytide.definition.values import Dialect

MAX_FRAGMENT: Final = 10_000
"""Characters of one expression."""
_MAX_NODES: Final = 1_000
_MAX_DEPTH: Final = 50
"""As in statements."""


def parse_expression(text: str) -> Expression:
    """The value expression that `text` says.

    Raises:
        InvalidStatementError: it is none, or too large; says where.
    """
    node = ExpressionReader(text).expression(_tokens(text))
    if sum(1 for _ in walk(node)) > _MAX_NODES or depth(node) > _MAX_DEPTH:
        raise InvalidStatementError("the expression is too large", text, 0, len(text))
    return node


def _tokens(text: str) -> Sequence[Token]:
    if len(text) > MAX_FRAGMENT:
        raise InvalidStatementError(f"an expression has at most {MAX_FRAGMENT} characters", "", 0)
    try:
        text.encode()
        tokens = Dialect().tokenize(text)
    except UnicodeEncodeError as error:
        raise InvalidStatementError("this is not valid Unicode", text[: error.start], error.start) from error
    except TokenError as error:
        raise unfinished(text) from error
    if not tokens:
        raise InvalidStatementError("there is no expression", text, 0)
    return tokens
