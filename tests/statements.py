"""What tests say of definitions and conditions in SQL, and the product has no use for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from keytide.collation import encode_part
from keytide.definition.expression import Predicate
from keytide.definition.sql import ExpressionReader
from keytide.definition.values import Dialect


def parse_predicate(text: str) -> Predicate:
    """The condition that `text` says; it may say UNNEST, as expressions in requests may."""
    return ExpressionReader(text).predicate(Dialect().tokenize(text))


def encode_splits(values: Iterable[Any]) -> tuple[bytes, ...]:
    """Given splits as routing takes them."""
    return tuple(map(encode_part, values))
