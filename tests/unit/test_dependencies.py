"""Each dependency has a lowest version, and those that are pinned are at or above it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WANTED = [
    Requirement(line)
    for lines in (
        PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"].values(),
        PROJECT["build-system"]["requires"],
    )
    for line in lines
]


def pinned(file: str) -> dict[str, Version]:
    found = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / file).read_text(), re.MULTILINE)
    return {name.lower(): Version(version) for name, version in found}


@pytest.mark.parametrize("wanted", WANTED, ids=str)
def test_each_has_a_lowest_version_that_the_pinned_one_meets(wanted: Requirement) -> None:
    assert any(bound.operator in (">=", "==") for bound in wanted.specifier), "no lowest version"
    pins = pinned("requirements.txt") | pinned("requirements-build.txt")
    assert pins[wanted.name.lower()] in wanted.specifier


def test_each_has_a_word_on_what_it_is_for() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    listed = text[text.index("dependencies = [") : text.index("[project.scripts]")]
    lines = [line.strip() for line in listed.splitlines() if line.strip().startswith('"')]
    assert len(lines) > 30
    assert [line for line in lines if not re.fullmatch(r'"[^"]+", # .+', line)] == []


def test_the_connectors_release_is_said_alike_where_spark_fetches_it_itself() -> None:
    from streaming.spark.session import _PACKAGES

    ivy = (ROOT / "deploy" / "ivy.xml").read_text()
    for package in _PACKAGES:
        _, name, version = package.split(":")
        asked = re.search(rf'name="{re.escape(name)}" rev="([^"]+)"', ivy)
        assert asked is not None
        assert asked[1] == version.replace("{spark}", "${spark.version}")


def test_the_configuration_of_pre_commit_can_be_read_and_runs_what_make_check_runs() -> None:
    file = ROOT / ".pre-commit-config.yaml"
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", "validate-config", str(file)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    makefile = (ROOT / "Makefile").read_text()
    tools = re.findall(
        r"^\t\$\(BIN\)/([a-z-]+(?: (?:format|check))?)", makefile[: makefile.index("\ntest:")], re.M
    )
    assert {"ruff format", "ruff check", "mypy", "lint-imports"} <= set(tools)
    assert [tool for tool in tools if f".venv/bin/{tool}" not in file.read_text()] == []
