"""What code and pages refer to is there: rules of the protocol, decisions, acceptance numbers, files and
symbols between backquotes. And what there is, is told: every rule has its reason, its module and the planted
faults that show it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from pydantic import BaseModel

from keytide.settings.settings import Settings
from tests.reference import metrics, rest, settings
from tests.simulation.table import faults
from tests.unit import test_pages
from tests.unit.test_style import PACKAGES, PRODUCT, ROOT, named, sources, texts, tree

PROTOCOL = ROOT / "docs/protocol.md"
ACCEPTANCE = ROOT / "docs/acceptance.md"
ELSEWHERE = re.compile(r"\b(?:DESIGN|CONTRACT|ACCEPTANCE|TARGETS|PROTOCOL)\b")
RULE = re.compile(r"\bR(\d+)(?: to R(\d+))?\b")
DECISION = re.compile(r"\b(?:ADR |docs/adr/)(\d+)")
NUMBERED = re.compile(r"[Aa]cceptance (\d+)")
FILE = re.compile(r"`([\w./-]+\.(?:py|md|toml|txt))(?:::(\w+))?`")
SYMBOL = re.compile(
    r"`((?:keytide|projector|router|indexer|coordinator|streaming|deploy|tests)(?:\.(?!py`|md`|toml`)\w+)+)`"
)
OF_ARROW = {f"keytide.{name}" for name in ("type", "column", "part", "index", "snapshot", "json", "error")}
"""Metadata of Arrow schemas that bear our name (docs/stream.md)."""


def sections(page: Path, title: str) -> dict[int, str]:
    """The texts below the headings `### <title> <number>. ...`, by number."""
    found = re.split(rf"^### {title}(\d+)\. ", page.read_text(), flags=re.MULTILINE)
    numbers, bodies = found[1::2], found[2::2]
    return {
        int(number): body.split("\n## ")[0].split("\n### ")[0]
        for number, body in zip(numbers, bodies, strict=True)
    }


def numbers(pattern: re.Pattern[str], text: str) -> Iterator[int]:
    """All numbers that a text cites, ends of ranges included."""
    for found in pattern.finditer(text):
        yield from (int(number) for number in found.groups() if number)


def prose() -> Iterator[tuple[str, str]]:
    """(name, text) of the code and the pages that cite; not those that are about citing."""
    for name, text in texts():
        if name.endswith((".py", ".md")) and not name.endswith("test_references.py"):
            yield name, text


@pytest.mark.parametrize(
    ("pattern", "known"),
    [
        (RULE, set(sections(PROTOCOL, "R"))),
        (NUMBERED, set(sections(ACCEPTANCE, "Acceptance "))),
        (DECISION, {int(path.name[:4]) for path in (ROOT / "docs/adr").glob("0*.md")}),
    ],
    ids=["rules", "acceptance", "decisions"],
)
def test_what_is_cited_by_number_is_there(pattern: re.Pattern[str], known: set[int]) -> None:
    cited = [(name, number) for name, text in prose() for number in numbers(pattern, text)]
    assert len(cited) > 20
    assert [(name, number) for name, number in cited if number not in known] == []


def test_nothing_is_cited_that_is_not_in_the_repository() -> None:
    found = [(name, said[0]) for name, text in prose() if (said := ELSEWHERE.findall(text))]
    assert found == []


def test_every_rule_says_why_where_and_what_shows_it() -> None:
    rules = sections(PROTOCOL, "R")
    assert len(rules) >= 35
    assert sorted(rules) == list(range(1, len(rules) + 1))
    for number, text in rules.items():
        assert "*Without" in text, number
        assert re.search(r"`\w+/[\w/]+\.py`", text), number
        assert re.search(r"Shown\s+by\s+`", text) or number == 16, number


def test_every_planted_fault_of_a_rule_stands_beside_it() -> None:
    rules = sections(PROTOCOL, "R")
    planted = {name: set(re.findall(r"\bR(\d+)", broken)) for name, broken in faults()}
    assert len(planted) > 90
    told = {
        (name, str(number))
        for number, text in rules.items()
        for name in re.findall(r"`(\w+)`", text.partition("Shown")[2])
    }
    assert told == {(name, number) for name, broken in planted.items() for number in broken}


# --- names between backquotes -------------------------------------------------------------------------------


@cache
def symbols() -> set[str]:
    """`module.name` and `module.Class.name` of everything that our packages define, and their modules."""
    found: set[str] = set()
    for path in sources(PACKAGES):
        module = named(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        found.add(module)
        for node in tree(path).body:
            for name in _defined(node):
                found.add(f"{module}.{name}")
    return found


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{name}" for inner in node.body for name in _defined(inner))
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    elif isinstance(node, ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in node.names)


def pages() -> list[Path]:
    """All but the one that tells of what is no more."""
    return [path for path in test_pages.pages() if path.name != "CHANGELOG.md"]


def test_files_that_pages_name_are_there() -> None:
    """As a path in the repository, or from the page's own folder."""
    wrong = []
    count = 0
    for page in pages():
        for file, inner in FILE.findall(page.read_text()):
            if "/" not in file or file.startswith((".", "/")):
                continue
            count += 1
            path = next((p for p in (ROOT / file, page.parent / file) if p.exists()), None)
            if path is None or (inner and f"def {inner}(" not in path.read_text()):
                wrong.append((named(page), file, inner))
    assert count > 100
    assert wrong == []


def test_symbols_that_pages_name_are_there() -> None:
    cited = [(named(page), name) for page in pages() for name in SYMBOL.findall(page.read_text())]
    assert len(cited) > 10
    known = symbols() | OF_ARROW
    assert [(page, name) for page, name in cited if name not in known and not _is_setting(name)] == []


def test_settings_that_pages_name_are_there() -> None:
    """`section.name`, where the section is one; and names of environment variables."""
    known = {f"{section}.{name}" for section, fields in settings.sections() for name in fields}
    known |= {section for section, _ in settings.sections()}
    names = "|".join(section for section, _ in settings.sections() if section)
    cited = [
        (named(page), found.lower().replace("__", "."))
        for page in pages()
        for found in re.findall(
            rf"`((?:{names})\.(?!py`|md`|core|toml`)[a-z_]+)(?= =|`)|KEYTIDE_([A-Z]+__[A-Z_]+)",
            page.read_text(),
        )
        for found in found
        if found
    ]
    assert len(cited) > 100
    known |= symbols() | {
        name.removeprefix("indexer.") for name in symbols()
    }  # as the package's own table says
    assert [(page, name) for page, name in cited if name not in known and "primary." not in name] == []


def test_metrics_that_pages_name_are_there() -> None:
    known = {one.name for lines in metrics.processes().values() for one in lines}
    known |= {f"{name}{ending}" for name in known for ending in ("_bucket", "_sum", "_count")}
    cited = [
        (named(page), name)
        for page in pages()
        for name in re.findall(r"`[^`\n]*\b(keytide_(?!metadata)[a-z_]+)[^`\n]*`", page.read_text())
    ]
    assert len(cited) > 20
    assert [(page, name) for page, name in cited if name not in known] == []


def test_routes_that_pages_name_are_there() -> None:
    """`METHOD /path`, whatever stands for the names in it."""
    known = {
        (method.upper(), re.sub(r"\{\w+\}", "*", path))
        for openapi in rest.documents().values()
        for path, methods in openapi["paths"].items()
        for method in methods
    }
    cited = [
        (named(page), method, path)
        for page in pages()
        for method, path in re.findall(r"\b(GET|POST|PATCH|DELETE) (/v1/[\w/{}.<>-]+)", page.read_text())
    ]
    assert len(cited) > 20
    wrong = []
    for page, method, path in cited:
        parts = path.rstrip("/.").split("/")
        fits = any(
            method == of
            and len(shape) == len(parts)
            and all(a in ("*", b) for a, b in zip(shape, parts, strict=True))
            for of, shape in ((of, shape.split("/")) for of, shape in known)
        )
        if not fits:
            wrong.append((page, method, path))
    assert wrong == []


def _is_setting(name: str) -> bool:
    """Settings of a section that is called as a package is: `indexer.port`."""
    section, _, rest = name.partition(".")
    return section in Settings.model_fields and rest in _members(section)


def _members(section: str) -> set[str]:
    model = Settings.model_fields[section].annotation
    return set(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else set()


def test_product_is_what_is_looked_at() -> None:
    assert set(PRODUCT) <= set(PACKAGES)
