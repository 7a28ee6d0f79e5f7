"""What statements about indexes share: options, whole numbers, limits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from sqlglot.tokenizer_core import Token, TokenType

from keytide.definition.expression import Node, depth, walk
from keytide.definition.tokens import Cursor

_MAX_NODES: Final = 10_000
_MAX_DEPTH: Final = 50


def limit(at: Cursor, node: Node, tokens: Sequence[Token]) -> None:
    """See that what stands at some tokens is not too large."""
    if sum(1 for _ in walk(node)) > _MAX_NODES or depth(node) > _MAX_DEPTH:
        raise at.error("the expression is too large", tokens)


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
        elif [one.token_type for one in tokens[1:3]] == [TokenType.EQ, TokenType.DASH] and len(tokens) == 4:
            value, place = f"-{tokens[3].text.lower()}", tokens[3]
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
