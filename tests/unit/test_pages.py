"""What the Markdown pages say, held against the code: links, invariants, settings, commands, statements."""

from __future__ import annotations

import ast
import builtins
import importlib
import io
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest
from typer.main import get_command

import keytide.client
import keytide.errors
from keytide.cli import app
from keytide.definition.statement import parse_statement
from keytide.errors import CallerError
from keytide.query.parse.statement import parse_query
from tests.site import LINK
from tests.unit.test_style import PRODUCT, ROOT, named, nodes, sources, tracked

INNER = re.compile(r"\$\((keytide [^|)]+)")
INNER_WHOLE = re.compile(r"\$\([^)]+\)")
"""A command whose output is an argument of another one."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".md"]


def targets(page: Path) -> list[str]:
    """Where a page's links lead."""
    return [found["target"] for found in LINK.finditer(page.read_text())]


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """(page, text) of all blocks of code in a language."""
    for page in pages():
        for found, text in BLOCK.findall(page.read_text()):
            if found == language:
                yield named(page), text


def test_links_point_to_files_that_exist() -> None:
    broken = []
    for page in pages():
        for target in targets(page):
            if target.startswith(("http://", "https://", "#", "mailto:")):
                continue
            wanted = (page.parent / target.split("#")[0]).resolve()
            if not wanted.exists():
                broken.append(f"{named(page)}: {target}")
    assert broken == []


def test_links_point_to_headings_that_exist() -> None:
    broken = []
    for page in pages():
        for target in targets(page):
            file, _, heading = target.partition("#")
            wanted = (page.parent / file).resolve() if file else page
            if heading and wanted.suffix == ".md" and heading not in headings(wanted):
                broken.append(f"{named(page)}: {target}")
    assert broken == []


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    lines = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).strip().replace(" ", "-") for line in lines}


def invariant_names() -> set[str]:
    """Names that the product code asserts: in `invariant(...)` and in errors raised directly."""
    names: set[str] = set()
    for path in sources(PRODUCT):
        for node in nodes(path, ast.Call):
            if not isinstance(node.func, ast.Name):
                continue
            at = {"invariant": 1, "InvariantViolationError": 0}.get(node.func.id)
            if at is not None and len(node.args) > at and isinstance(node.args[at], ast.Constant):
                names.add(str(node.args[at].value))  # type: ignore[attr-defined]
    return names


def test_architecture_lists_the_invariants_that_are_asserted() -> None:
    listed = set(re.findall(r"^\| \*(\w+)\* \|", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE))
    code = "".join(path.read_text() for path in sources(PRODUCT))
    assert invariant_names() - listed == set(), "asserted, and not in ARCHITECTURE.md"
    assert {name for name in listed if f'"{name}"' not in code} == set(), "listed, and asserted nowhere"


# --- examples -----------------------------------------------------------------------------------------------


def commands() -> list[tuple[str, str]]:
    """(page, command line) of every `keytide ...` in a shell block or between backticks. (`keytide …` stands
    for any of them, in what an error says.)"""
    found = []
    for page in pages():
        for line in re.findall(r"`(keytide(?: [^`]+)?)`", page.read_text()):
            if line != "keytide …":
                found.append((named(page), line.replace("\n", " ")))
    for name, text in blocks("sh"):
        for line in text.splitlines():
            found += [(name, inner) for inner in INNER.findall(line)]
            if line.startswith("keytide "):
                found.append((name, INNER_WHOLE.sub("x", line)))
    return found


COMMAND = get_command(app)  # (a runner of typer's would make all commands anew for each line)


@cache
def refusal(line: str) -> str:
    """What the command says against a line's commands and options, "" for nothing."""
    arguments = shlex.split(line, comments=True)[1:]
    said = io.StringIO()
    no_text = patch.object(COMMAND.context_class, "get_help", return_value="")  # (takes most of the time)
    with no_text, redirect_stdout(said), redirect_stderr(said), pytest.raises(SystemExit) as ended:
        COMMAND.main([*arguments, "--help"], "keytide")  # parses the line, runs nothing
    return said.getvalue() if ended.value.code else ""


def test_commands_in_the_pages_exist() -> None:
    found = commands()
    assert len(found) > 20
    assert [(page, line, said) for page, line in found if (said := refusal(line))] == []


@pytest.mark.parametrize("line", ["keytide index melt x", "keytide scan by_city --tipp", "keytide nix"])
def test_a_command_that_does_not_exist_is_seen(line: str) -> None:
    assert "No such" in refusal(line)


def test_statements_in_the_pages_are_understood() -> None:
    """All of the form `keytide sql "..."`, but those with an ellipsis."""
    statements = []
    for page, line in commands():
        arguments = shlex.split(line, comments=True)
        if arguments[1:2] == ["sql"] and len(arguments) > 2 and "..." not in arguments[2]:
            statements.append((page, arguments[2]))
    assert len(statements) > 2
    for page, statement in statements:
        reads = statement.lstrip().upper().startswith(("SELECT", "EXPLAIN"))
        try:
            parse_query(statement) if reads else parse_statement(statement)
        except CallerError as error:
            pytest.fail(f"{page}: {error.message}")


def test_python_in_the_pages_compiles_and_imports_what_exists() -> None:
    found = list(blocks("python"))
    assert found
    for page, text in found:
        for node in ast.walk(ast.parse(text, page)):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = importlib.import_module(node.module)
                missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
                assert missing == [], f"{page}: from {node.module} import {', '.join(missing)}"


def test_classes_that_the_clients_page_names_are_the_clients() -> None:
    """A class of that name elsewhere in the product is no use to who copies it."""
    page = (ROOT / "docs" / "clients.md").read_text()
    known = {*dir(keytide), *dir(keytide.client), *dir(keytide.errors), *dir(builtins)}
    found = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)+|[A-Z][a-z]+)(?:\([^`]*\))?`", page))
    assert len(found) > 10
    assert found - known == set()
