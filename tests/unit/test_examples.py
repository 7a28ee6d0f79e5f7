"""Every block of code in the README and in docs/ is run, compared or loaded, or says why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.statements.origin_body import OriginBody
from keytide.definition.statement import parse_statement
from keytide.errors import ConfigurationError
from keytide.settings.settings import load_settings
from tests import examples
from tests.examples import RUN, SHOWN, Block, blocks, fits, foreign, found
from tests.unit.test_style import named

MAX_LEFT_ALONE = 4
GENERATED = "docs/reference/"
REQUESTS = {"docs/initial-state.md": OriginBody}
"""Pages whose JSON is not what is answered, and what it is."""


def every() -> list[Block]:
    """All of them, but for those of pages that are made from the code."""
    return [
        block
        for page in examples.pages()
        for block in blocks(named(page))
        if not block.page.startswith(GENERATED)
    ]


def wrong(block: Block, before: list[Block]) -> str:
    """What is the matter with a block, "" for nothing.

    Args:
        before: the blocks of its page before it.
    """
    if block.reason:
        return ""
    if block.language in RUN:
        return "" if block.page in examples.PAGES else "its page is not in tests.examples.PAGES"
    if block.page in REQUESTS and block.language == "json":
        return ""
    if block.language in SHOWN:
        ran = any(one.language in RUN and not one.reason for one in before)
        return "" if ran else "nothing before it shows this"
    return "" if block.language == "toml" else f"nothing is done with {block.language or 'no language'}"


def test_every_block_is_held_to_something() -> None:
    every_one = every()
    assert len(every_one) > 50
    assert {page.name for page in examples.pages()} >= {"README.md", "build.md", "0001-key-encoding.md"}
    found = [
        (block.page, block.line, said)
        for block in every_one
        if (
            said := wrong(
                block, [one for one in every_one if one.page == block.page and one.line < block.line]
            )
        )
    ]
    assert found == []


def test_few_are_left_alone() -> None:
    left = [(block.page, block.line) for block in every() if block.reason]
    assert 0 < len(left) <= MAX_LEFT_ALONE, left


def test_each_page_that_is_run_has_something_to_run() -> None:
    for page in examples.PAGES:
        assert any(block.language in RUN and not block.reason for block in blocks(page)), page


def test_examples_in_json_are_json() -> None:
    shown = [block for block in every() if block.language == "json"]
    assert len(shown) > 5
    for block in shown:
        try:
            json.loads(block.text)
        except ValueError as error:
            pytest.fail(f"{block.page}:{block.line}: {error}")


def test_requests_in_the_pages_can_be_read() -> None:
    for page, model in REQUESTS.items():
        bodies = [block.text for block in blocks(page) if block.language == "json"]
        assert bodies
        for body in bodies:
            model.model_validate_json(body)


def test_statements_in_the_pages_are_understood() -> None:
    """Here as in `test_tour`, which runs them: so much is known in a second."""
    statements = [
        statement
        for block in every()
        if block.language == "sql" and not block.reason
        for statement in filter(str.strip, block.text.split(";\n"))
    ]
    assert len(statements) > 2
    for statement in statements:
        parse_statement(statement)


def test_settings_in_the_pages_can_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [block for block in every() if block.language == "toml"]
    assert len(settings) > 5
    monkeypatch.setenv("KEYTIDE_CONFIG", str(tmp_path / "keytide.toml"))
    for block in settings:
        (tmp_path / "keytide.toml").write_text(block.text)
        try:
            load_settings()
        except ConfigurationError as error:
            pytest.fail(f"{block.page}:{block.line}: {error}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```sh\nls\n```\n", "PAGES"),
        ("```\nls\n```\n", "no language"),
        ("* so\n\n  ```java\n  x\n  ```\n", "java"),
        ("```text\nls\n```\n", "nothing before"),
        ("<!-- not run: a grammar -->\n```text\nls\n```\n", ""),
        ("```toml\na = 1\n```\n", ""),
    ],
)
def test_a_block_of_no_kind_is_seen(text: str, said: str) -> None:
    (block,) = found("docs/new.md", text)
    assert said in wrong(block, [])
    assert bool(said) == bool(wrong(block, []))


@pytest.mark.parametrize(
    ("example", "answer", "good"),
    [
        ({"a": 1}, {"a": 2.5, "b": 1}, True),
        ({"a": 1}, {"b": 1}, False),
        ({"a": "x"}, {"a": 1}, False),
        ({"a": None}, {"a": 1}, True),
        ({"rows": [{"key": [1]}]}, {"rows": [{"id": 1}, {"key": [2]}]}, True),
        ({"rows": [{"key": [1]}]}, {"rows": []}, False),
        ({"timestamp": {"7": 1}}, {"timestamp": {"0": {}}}, True),
    ],
)
def test_an_answer_has_what_an_example_has(example: object, answer: object, good: bool) -> None:
    assert fits(example, answer) is good


def test_words_of_an_example_that_were_not_shown() -> None:
    assert foreign("spans  city, zip", "│ city │ spans") == ["zip"]
