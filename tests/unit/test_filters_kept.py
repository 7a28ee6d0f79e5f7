"""Conditions that are made ready once: of the index that they were made for."""

from __future__ import annotations

import msgspec
import pytest

from indexer.scan.local.filtering import Conditions
from keytide.collation import Value
from keytide.definition.expression import Comparison, Literal, Path
from keytide.definition.index import IndexDefinition
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.errors import CallerError


def definition(keys: str) -> IndexDefinition:
    statement = parse_statement(f"CREATE INDEX i ON users ({keys})")
    assert isinstance(statement, CreateIndex)
    return statement.definition


ADULT = msgspec.json.encode(Comparison(">=", Path(("age",)), Literal(18)))


def test_a_condition_is_made_once() -> None:
    conditions = Conditions()
    first = conditions.of("ix-1", definition("city, age"), ADULT)
    assert first is not None
    assert conditions.of("ix-1", definition("city, age"), ADULT) is first
    assert conditions.of("ix-1", definition("city, age"), b"") is None


def test_it_is_not_that_of_another_index() -> None:
    conditions = Conditions()
    cases: list[tuple[str, list[Value]]] = [("city, age", ["Rome", 20]), ("age, city", [20, "Rome"])]
    for keys, key in cases:
        made = conditions.of("ix-1", definition(keys), ADULT)
        assert made is not None
        assert made.test(key, "", {}) is True
        assert made.needs.parts == key.index(20) + 1


def test_what_is_no_condition_is_refused() -> None:
    with pytest.raises(CallerError, match="not a filter"):
        Conditions().of("ix-1", definition("age"), b"[1]")
