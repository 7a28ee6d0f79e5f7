"""Long lists of constants behind IN are taken out of a query before sqlglot reads it.

sqlglot takes some microseconds for a constant, and a query may have thousands of them: 20 ms in which a node
does little else. Blanks stand in place of all constants but the first, so that every place in the text stays
what it was, and the tokens show afterwards that it was such a list (and not, say, the inside of a string).
Whatever is not clear is left to sqlglot.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from sqlglot.tokenizer_core import Token, TokenType

from keytide.definition.sql import WrittenConstants
from keytide.definition.values import Dialect

LONG_LIST: Final = 50
"""Constants from which on it is worth it."""

_STRING: Final = r"'(?>(?:[^']|'')*)'"
_CONSTANT: Final = rf"(?:{_STRING}|[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?+[0-9]++)?)"
_BLANK: Final = r"[ \t\r\n]*+"
_CONSTANT_PATTERN: Final = re.compile(_CONSTANT)
_LIST_PATTERN: Final = re.compile(  # strings and quoted names are met as a whole, not what is in them
    rf'{_STRING}|"(?>(?:[^"]|"")*)"'
    rf"|\b[iI][nN]{_BLANK}\({_BLANK}(?P<first>{_CONSTANT})(?P<others>(?>(?:{_BLANK},{_BLANK}{_CONSTANT})+)){_BLANK}\)"
)
_UNCLEAR_PATTERN: Final = re.compile(r"[\\$`]|--|/\*")
"""Comments, and strings that end elsewhere than at the next quote."""


def tokenize(text: str) -> tuple[list[Token], dict[int, WrittenConstants]]:
    """A query's tokens, and its long lists by the place of their first constant, of which alone there is one.

    Raises:
        TokenError: as sqlglot's.
    """
    shortened, lists = _shortened(text)
    tokens = Dialect().tokenize(shortened)
    if lists and _met(tokens) < lists.keys():
        return Dialect().tokenize(text), {}
    return tokens, lists


def _shortened(text: str) -> tuple[str, dict[int, WrittenConstants]]:
    lists: dict[int, WrittenConstants] = {}
    if _UNCLEAR_PATTERN.search(text):
        return text, lists
    kept: list[str] = []
    end = 0
    for found in _LIST_PATTERN.finditer(text):
        if found["first"] is None or found["others"].count(",") + 1 < LONG_LIST:
            continue
        start, stop = found.span("others")
        constants = [
            (one.start(), one[0]) for one in _CONSTANT_PATTERN.finditer(text, found.start("first"), stop)
        ]
        if len(constants) >= LONG_LIST:
            kept += text[end:start], " " * (stop - start)
            end = stop
            lists[found.start("first")] = constants
    return "".join([*kept, text[end:]]), lists


def _met(tokens: Sequence[Token]) -> set[int]:
    """Where constants stand alone behind IN."""
    return {
        one.start
        for before, opens, one, closes in zip(tokens, tokens[1:], tokens[2:], tokens[3:], strict=False)
        if (before.token_type, opens.token_type) == (TokenType.IN, TokenType.L_PAREN)
        and one.token_type in (TokenType.NUMBER, TokenType.STRING)
        and closes.token_type == TokenType.R_PAREN
    }
