"""Names of indexes and keyspaces in statements, and words that are refused by name."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

from sqlglot.tokenizer_core import Token

from keytide.definition.tokens import Cursor
from keytide.model.hints import did_you_mean
from keytide.structure import DEFAULT_STRUCTURE, STRUCTURES, StructureName

_LONGEST: Final = 128
_INDEX_NAME: Final = re.compile(rf"[A-Za-z_][A-Za-z0-9_.-]{{0,{_LONGEST - 1}}}")
_KEYSPACE: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""Kafka's rule for topics."""


def index_name(at: Cursor) -> str:
    """The name of an index that stands here."""
    tokens = at.name("the name of an index")
    name = at.joined(tokens)
    check_index_name(at, name, tokens)
    return name


def check_index_name(at: Cursor, name: str, tokens: Sequence[Token]) -> None:
    if not _INDEX_NAME.fullmatch(name):
        raise at.error(
            f"{name!r} cannot be the name of an index",
            tokens,
            next_step="A letter or _, then letters, digits, _, . and -; at most 128 characters.",
        )


def free_name(stem: str, taken: Collection[str]) -> str:
    """A name for an index that no other has: `stem`, with a number if need be.

    Args:
        stem: at most 128 characters of a name.
    """
    name, number = stem, 2
    while name in taken:
        ending = f"_{number}"
        name, number = stem[: _LONGEST - len(ending)] + ending, number + 1
    return name


def keyspace_name(at: Cursor) -> str:
    """The name of a keyspace that stands here."""
    tokens = at.name("the name of a keyspace")
    name = at.joined(tokens)
    if not _KEYSPACE.fullmatch(name) or name in (".", ".."):
        raise at.error(
            f"{name!r} cannot be the name of a keyspace",
            tokens,
            next_step="A keyspace is a Kafka topic: letters, digits, . _ and -, at most 249 characters.",
        )
    if name.startswith("__"):
        raise at.error(
            f"{name!r} is a topic of Kafka's own",
            tokens,
            next_step="Name a topic that holds documents; one of yours cannot begin with __ here.",
        )
    return name


def structure_name(at: Cursor) -> StructureName:
    """What USING says, if it stands here; a btree if not."""
    if not at.accept("USING"):
        return DEFAULT_STRUCTURE
    for name in STRUCTURES:
        if at.accept(name.upper()):
            return name
    token = at.next_token
    said = token.text.lower() if token is not None and token.text != "(" else ""
    raise at.error(
        f"there is no structure {said!r}" if said else "USING needs the name of a structure",
        token,
        next_step=did_you_mean(said, STRUCTURES, f"There are {', '.join(STRUCTURES)}."),
    )


def refuse(at: Cursor, word: str, reason: str) -> None:
    """Refuse a word of PostgreSQL's that has no meaning here."""
    if at.peek(word):
        raise at.error(reason, next_step="Leave it out.")
