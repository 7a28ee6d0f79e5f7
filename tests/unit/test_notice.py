"""What CREATE INDEX says of fields that no document has."""

from __future__ import annotations

import pytest

from coordinator.kafka import field_notices as noticing
from coordinator.kafka.field_notices import notice, unknown_fields
from keytide.definition.index import IndexDefinition
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.settings.settings import load_settings
from tests.unit.leader_world import facts

PEOPLE = [b'{"city": "Rome", "address": {"street": "x", "code": null}, "tags": ["a"]}', b'{"age": 3}']


def definition(text: str) -> IndexDefinition:
    statement = parse_statement(f"CREATE INDEX i ON people {text}")
    assert isinstance(statement, CreateIndex)
    return statement.definition


@pytest.mark.parametrize(
    "text",
    [
        "(city, age)",
        "(address.street) INCLUDE (age)",
        "(address.code)",
        "(UNNEST(tags))",
        "(tags[0])",
        "(lower(city)) WHERE age > 3",
    ],
)
def test_nothing_is_said_of_fields_that_some_document_has(text: str) -> None:
    assert unknown_fields(definition(text), PEOPLE) == ""


def test_a_field_that_none_has_is_named_with_what_was_meant() -> None:
    said = unknown_fields(definition("(citi)"), PEOPLE)
    assert said == (
        "none of the 2 newest documents looked at has citi (did you mean city?); documents without the "
        "leading key have no entries"
    )
    assert "address.stret (did you mean address.street?)" in unknown_fields(
        definition("(city) INCLUDE (address.stret)"), PEOPLE
    )
    assert "tags[7]" in unknown_fields(definition("(tags[7])"), PEOPLE)
    assert "aeg (did you mean age?)" in unknown_fields(definition("(city) WHERE aeg > 3"), PEOPLE)


@pytest.mark.parametrize("values", [[], [b"no JSON", b"[1]", b"\xff"]])
def test_without_documents_nothing_is_known(values: list[bytes]) -> None:
    assert unknown_fields(definition("(citi)"), values) == ""


def test_a_kafka_that_does_not_answer_costs_a_moment_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noticing, "LIMIT_S", 0.1)
    settings = load_settings(kafka={"bootstrap": "127.0.0.1:1", "log_level": 0})
    assert notice(settings, definition("(citi)"), facts((130, 60))) == ""
