"""`keytide sql` with queries, and `/v1/query` over HTTP: a node and a coordinator that are real servers."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import uvicorn
from prometheus_client import CollectorRegistry
from typer.testing import Result

from indexer.serve.api import create_app
from keytide.cli import sql as sql_command
from keytide.cli.output import out
from keytide.cli.sql import first_word
from keytide.settings.settings import load_settings
from tests.browser.scene import busy_day, served
from tests.serving import running
from tests.unit.command import run_command
from tests.unit.test_query_service import PEOPLE, TAGS, world


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    """A node that serves `PEOPLE` and `TAGS`."""
    made = world(1)
    application = create_app(made.views["n0"], load_settings(), CollectorRegistry())
    listener = socket.create_server(("127.0.0.1", 0))
    with running(uvicorn.Server(uvicorn.Config(application, log_level="warning")), listener) as port:
        yield f"http://127.0.0.1:{port}"
    assert len(PEOPLE) == 30 == len(TAGS) // 2


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "_width", 200)


def run(*arguments: str, status: int = 0, typed: str | None = None) -> Result:
    result = run_command(["sql", *arguments], input=typed)
    assert result.exit_code == status, result.output
    return result


def test_a_query_is_a_table_or_json(node: str) -> None:
    text = "SELECT id, age FROM users WHERE city = 'Boston' AND age < 9 ORDER BY age"
    shown = run(text, "--node", node).stdout
    assert "3 rows from by_city at snapshot 1" in shown
    assert shown.index("u01") < shown.index("u04") < shown.index("u07")
    document = json.loads(run(text, "--node", node, "--json").stdout)
    assert document["rows"] == [["u01", 1], ["u04", 4], ["u07", 7]]
    assert (document["columns"], document["index"], document["snapshot"]) == (["id", "age"], "by_city", 1)


def test_values_are_shown_as_they_are(node: str) -> None:
    columns = "AVG(age) AS \"[red]mean\", 1234567, 0.015, '[/x][b]', TRUE, NULL"
    shown = run(f"SELECT {columns} FROM users WHERE city = 'Boston'", "--node", node).stdout
    for words in ("[red]mean", "14.5", "1234567", "0.015", "[/x][b]", "true", "null"):
        assert words in shown
    wrong = run("SELECT id FROM users WHERE '[/x]' =", "--node", node, status=1)
    assert "WHERE '[/x]' =" in wrong.output


def test_rows_are_cut_and_that_is_said(node: str) -> None:
    text = "SELECT id FROM users WHERE city > 'A'"
    shown = run(text, "--node", node, "--rows", "5").stdout
    assert shown.count("│ u") == 5
    assert "more rows" in shown
    assert "more rows" not in run(text, "--node", node).stdout
    assert len(json.loads(run(text, "--node", node, "--json").stdout)["rows"]) == 30


def test_explain_is_readable(node: str) -> None:
    text = "explain SELECT id FROM users WHERE city = 'Boston' AND name <> 'x' ORDER BY name LIMIT 3"
    shown = run(text, "--node", node).stdout
    for words in ("by_city", "city = 'Boston'", "1 of 4", "name <> 'x'", "sorted by", "LIMIT 3", "of 30"):
        assert words in shown
    assert "it has an entry for each element of tags" in shown
    assert json.loads(run(text, "--node", node, "--json").stdout)["index"] == "by_city"


@pytest.mark.parametrize(
    ("statement", "options", "against"),
    [
        ("DROP INDEX x", ("--tip", "--at-least", '{"0": 1}'), "a statement other than SELECT and EXPLAIN"),
        ("DROP INDEX x", ("--rows", "5"), "a statement other than SELECT and EXPLAIN"),
        ("EXPLAIN SELECT id FROM users", ("--rows", "5"), "EXPLAIN"),
    ],
)
def test_options_that_would_mean_nothing_are_refused(
    statement: str, options: tuple[str, ...], against: str
) -> None:
    """Of one statement: in a script they are for the queries among others."""
    nowhere = ("--url", "http://127.0.0.1:1", "--node", "http://127.0.0.1:1", "--json")
    told = json.loads(run(statement, *options, *nowhere, status=1).stdout)
    names = " and no ".join(one for one in options if one.startswith("--"))
    assert told["detail"] == f"{against} takes no {names}"
    assert told["next_step"]


def test_errors_say_what_to_do(node: str) -> None:
    refused = run("SELECT zip FROM users WHERE zip = 1", "--node", node, status=1)
    assert "CREATE INDEX by_zip ON users (zip)" in refused.output.replace("\n", " ")
    wrong = json.loads(run("SELECT zip FROM", "--node", node, "--json", status=1).stdout)
    assert wrong["type"] == "invalid-statement"
    assert "^" in wrong["caret"]


def test_the_prompt_goes_on_after_errors_and_keeps_a_history(
    node: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(sql_command.Path, "home", lambda: tmp_path)  # type: ignore[attr-defined]
    monkeypatch.setattr(sql_command, "at_terminal", lambda: True)
    typed = (
        "SELECT\nCOUNT(*) FROM users\nWHERE city > 'A';\nSELECT nonsense;\n;\n"
        "SELECT MAX(age) FROM users WHERE city > 'A';\n"
    )
    shown = run("--node", node, typed=typed).output
    assert "30" in shown
    assert "FROM must stand here" in shown
    assert "MAX(age)" in shown
    assert (tmp_path / ".keytide_history").exists()


def test_a_script_ends_at_its_first_mistake(node: str) -> None:
    typed = "SELECT COUNT(*) FROM users\nWHERE city > 'A';\nSELECT nonsense;\nSELECT MAX(age) FROM users;\n"
    shown = run("--node", node, typed=typed, status=1).output
    assert "30" in shown
    assert "FROM must stand here" in shown
    assert "MAX(age)" not in shown
    assert "keytide>" not in shown


def test_ctrl_c_at_the_prompt_cancels_the_line(
    node: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(sql_command.Path, "home", lambda: tmp_path)  # type: ignore[attr-defined]
    monkeypatch.setattr(sql_command, "at_terminal", lambda: True)
    lines: Iterator[str | type[BaseException]] = iter(
        ["SELECT half", KeyboardInterrupt, "SELECT COUNT(*) FROM users WHERE city > 'A';", EOFError]
    )
    prompts: list[str] = []

    def typed(prompt: str) -> str:
        prompts.append(prompt)
        line = next(lines)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", typed)
    shown = run("--node", node).output
    assert "30" in shown
    assert "half" not in shown
    assert prompts == ["keytide> ", "     ...> ", "keytide> ", "keytide> "]


def test_the_coordinator_points_queries_to_the_nodes() -> None:
    with served(busy_day()) as url:
        answer = httpx.post(f"{url}/v1/statements", json={"statement": "SELECT id FROM flights"})
        problem = answer.json()
        assert (answer.status_code, problem["type"]) == (421, "ask-a-node")
        assert problem["nodes"]
        assert all(one.startswith("http") for one in problem["nodes"])
        assert "/v1/query" in problem["next_step"]


def test_queries_over_http(node: str) -> None:
    sql = "SELECT id FROM users WHERE city = 'Boston' ORDER BY age LIMIT 1"
    posted = httpx.post(f"{node}/v1/query", json={"sql": sql}).json()
    by_hand = httpx.get(f"{node}/v1/query", params={"sql": sql}).json()
    assert posted["rows"] == by_hand["rows"] == [["u01"]]
    for body, kind in (
        ({}, "invalid-request"),
        ({"sql": 5}, "invalid-request"),
        ({"sql": sql, "limit": 0}, "invalid-request"),
        ({"sql": sql, "nonsense": 1}, "invalid-request"),
        ({"sql": "x" * 200_000}, "invalid-request"),
        ({"sql": sql, "page": "x"}, "invalid-token"),
        ({"sql": sql, "at": "x"}, "invalid-token"),
        ({"sql": "SELECT \ud800 FROM users"}, "invalid-request"),
    ):
        answer = httpx.post(f"{node}/v1/query", content=json.dumps(body))
        assert (answer.status_code, answer.json()["type"]) == (422, kind), body
    page = httpx.get(f"{node}/openapi.json").json()["paths"]["/v1/query"]
    assert {one["name"] for one in page["get"]["parameters"]} >= {"sql", "limit", "page", "at", "session"}
    assert page["post"]["requestBody"]["content"]["application/json"]["examples"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("select 1", "SELECT"),
        ("  -- why\n /* not\n */ Explain SELECT", "EXPLAIN"),
        ("CREATE INDEX x", "CREATE"),
        ("", ""),
        ("-- select", ""),
    ],
)
def test_the_first_word_says_who_answers(text: str, word: str) -> None:
    assert first_word(text) == word
