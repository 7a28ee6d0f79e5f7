"""What code and pages refer to is there: rules of the protocol, decisions, acceptance numbers, and between
backquotes files, symbols, settings, metrics, error types, commands, programs and routes. And what there is,
is told: every rule has its reason, its module and the planted faults that show it, and every setting, metric,
command and route is named by a page that somebody has written."""

from __future__ import annotations

import ast
import builtins
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from pydantic import BaseModel

from keytide.settings.settings import Settings
from tests.reference import commands, errors, metrics, rest, settings
from tests.simulation.killers import KILLERS
from tests.simulation.table import BEGIN, END, faults, rows
from tests.unit import test_pages
from tests.unit.test_rooms import module_of
from tests.unit.test_style import (
    PACKAGES,
    PRODUCT,
    ROOT,
    named,
    nodes,
    sources,
    text_of,
    texts,
    tracked,
    tree,
)

PROTOCOL = ROOT / "docs/protocol.md"
ACCEPTANCE = ROOT / "docs/acceptance.md"
ELSEWHERE = re.compile(r"\b(?:DESIGN|CONTRACT|ACCEPTANCE|TARGETS|PROTOCOL)\b")
RULE = re.compile(r"\bR(\d+)(?: to R(\d+))?\b")
DECISION = re.compile(r"\b(?:ADR |docs/adr/)(\d+)")
NUMBERED = re.compile(r"[Aa]cceptance \d+(?:(?:, (?:and )?| and | or | to )\d+)*")
FILE = re.compile(r"`([\w./-]+\.(?:py|md|toml|txt))((?:::[\w<>]+)*)`")
"""A file, and what is in it: `file.py::Class::name`."""
SYMBOL = re.compile(
    r"`((?:keytide|projector|router|indexer|coordinator|streaming|deploy|tests)(?:\.(?!py`|md`|toml`)\w+)+)`"
)
SPAN = re.compile(r"`([^`\n]+)`")
WITHIN = re.compile(r"`(\w+/[\w/.]+)` \((`[^()]+)\)|`(\w+/[\w/]+/)`: ((?:(?!`\w+/)[^|\n])+)")
"""A file or folder with names in it: `path` (`name`, `name`), or `folder/`: `name` (`name`, `name`)."""
NAME_OF = re.compile(r"`(\w+)` of `(\w+/[\w/]+\.py)`")
FENCED = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
CLASS = re.compile(r"[A-Z][a-z0-9]+(?:[A-Z]\w*)+")
CALL = re.compile(r"([\w.]+)\([^()]*\)")
DOTTED = re.compile(r"[A-Za-z]\w*(?:\.\w+)+")
HYPHENED = re.compile(r"[a-z]+(?:-[a-z]+)+")
STATUS = re.compile(r"\b([45]\d\d)((?:,?\s+`[a-z-]+`)+)")
PATH = re.compile(r"(?<![\w.}])/(?:internal/)?v1(?:/[\w.<>-]+|/\{[^}\s]+\})+")
OF_OTHERS = {
    *("OffsetForLeaderEpoch", "DeleteRecords", "EventSource", "IncompleteRead", "RemoteProtocolError"),
    *("DataSourceReader.pushFilters", "pyspark.__version__", "ValidationError", "char", "increase", "avg"),
    *("DataFrame.filter", "PythonDataSourceV2.readInfo", "http.disconnect"),
}
"""Names of Kafka's requests, of other libraries, of SQL, of Prometheus and of ASGI."""
OF_OTHERS_BEGIN = (
    "kafka_",
    "jdk.",
    "spark.",
    "enable.",
    "address.",
    "sasl.",
    "auto.",
    "message.",
    "cleanup.",
    "bootstrap.",
    "delete.",
    "fetch.",
    "log.cleaner.",
    "min.",
    "ST_",
)
"""What dotted names of others begin with: their settings and parts, a field of the examples' documents."""
FILES = {"c", "json", "ndjson", "toml", "xml"}
"""What names of files end with, beside those that `FILE` knows."""
NEW = "keytide_index_entries"
"""The metric that CONTRIBUTING.md's first change adds: no process has it."""
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
    """All numbers that a text cites, those of lists and the ends of ranges included."""
    for found in pattern.finditer(text):
        yield from map(int, re.findall(r"\d+", found[0]))


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
    assert sorted(rules) == list(range(1, max(rules) + 1))
    for page in (PROTOCOL, ROOT / "ARCHITECTURE.md"):
        assert re.search(rf"cited (?:in the code )?as R1 to R{max(rules)}\b", page.read_text()), page
    for number, text in rules.items():
        assert "*Without" in text, number
        assert re.search(r"`\w+/[\w/]+\.py`", text), number
        assert re.search(r"Shown\s+by\s+`", text), number
        shown = FILE.findall(text.partition("Shown")[2])
        bare = [file for file, inner in shown if file.startswith("tests/") and not inner]
        assert bare == [], f"R{number}: a planted fault or a test shows it, and not a file"


def test_every_rule_is_cited_by_a_module_that_it_names() -> None:
    """Whoever changes what carries a rule out reads there which, and why."""
    uncited = {
        number: modules
        for number, text in sections(PROTOCOL, "R").items()
        for modules in [re.findall(r"`(\w+/[\w/]+\.py)`", text.partition("Shown")[0])]
        if not any(re.search(rf"\bR{number}\b", text_of(ROOT / module)) for module in modules)
    }
    assert uncited == {}


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


def test_the_table_of_planted_faults_is_that_of_the_simulation() -> None:
    page = (ROOT / "docs/simulation.md").read_text()
    assert page.split(BEGIN)[1].split(END)[0].strip().splitlines() == rows(KILLERS)


# --- names between backquotes -------------------------------------------------------------------------------


@cache
def symbols() -> set[str]:
    """`module.name` and `module.Class.name` of everything that our packages define, and their modules."""
    found: set[str] = set()
    for path in sources(PACKAGES):
        module = module_of(path)
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


@cache
def defined() -> set[str]:
    """Every name that our packages define, in whatever scope: classes, functions, variables, attributes."""
    found: set[str] = set()
    for path in sources(PACKAGES):
        found |= {node.name for node in nodes(path, ast.ClassDef)}
        found |= {node.name for node in nodes(path, ast.FunctionDef)}
        found |= {node.name for node in nodes(path, ast.AsyncFunctionDef)}
        found |= {node.id for node in nodes(path, ast.Name) if isinstance(node.ctx, ast.Store)}
        found |= {node.attr for node in nodes(path, ast.Attribute) if isinstance(node.ctx, ast.Store)}
    return found


@cache
def members() -> dict[str, set[str]]:
    """Name of a class -> what it, or a class of ours that it derives from, defines in its body, and which
    attributes it sets. Where tests have one of the same name, that of the product."""
    paths = (*sources(PACKAGES), *sources(PRODUCT))
    classes = {node.name: node for path in paths for node in nodes(path, ast.ClassDef)}

    def of(name: str) -> set[str]:
        if name not in classes:
            return set()
        own = {inner for node in classes[name].body for inner in _defined(node)}
        own |= {
            node.attr
            for node in ast.walk(classes[name])
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        }
        bases = [base.value if isinstance(base, ast.Subscript) else base for base in classes[name].bases]
        return own.union(*(of(base.id) for base in bases if isinstance(base, ast.Name)))

    return {name: of(name) for name in classes}


@cache
def constants() -> set[str]:
    """Every string of the product's code, of the benchmarks' and of the simulation's, of whose scenarios and
    faults pages tell."""
    return {
        node.value
        for path in (*sources((*PRODUCT, "benchmarks")), *(ROOT / "tests" / "simulation").glob("*.py"))
        for node in nodes(path, ast.Constant)
        if isinstance(node.value, str)
    }


def spans() -> Iterator[tuple[str, str]]:
    """(page, text) of all that stands between backquotes, outside of blocks."""
    for page in pages():
        for text in SPAN.findall(FENCED.sub("", page.read_text())):
            yield named(page), text


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
            path = next((p.resolve() for p in (ROOT / file, page.parent / file) if p.exists()), None)
            if path is None or not is_in(path, inner):
                wrong.append((named(page), file, inner))
    assert count > 100
    assert wrong == []


def is_in(path: Path, inner: str) -> bool:
    """Whether a file has `::name` or `::Class::name` at its top: what pytest would find."""
    return not inner or f"{module_of(path)}{inner.replace('::', '.')}" in symbols()


@pytest.mark.parametrize(
    ("inner", "there"),
    [
        ("::TestActivation::test_a_new_owner_waits_for_the_version_of_the_commit", True),
        ("::TestActivation::test_a_new_owner_waits", False),
        ("::test_a_new_owner_waits_for_the_version_of_the_commit", False),
        ("::accept::<locals>::test_a_new_owner_waits_for_the_version_of_the_commit", False),
    ],
)
def test_a_test_that_is_not_there_is_seen(inner: str, there: bool) -> None:
    assert FILE.fullmatch(f"`tests/unit/test_tracker.py{inner}`")
    assert is_in(ROOT / "tests/unit/test_tracker.py", inner) is there


@cache
def own(path: Path) -> set[str]:
    """What a module defines itself, at its top and in its classes; not what it imports."""
    return {
        inner.rpartition(".")[2]
        for node in tree(path).body
        if not isinstance(node, ast.ImportFrom)
        for inner in _defined(node)
    }


def lies_in(place: str, name: str) -> bool:
    """Whether a file defines a name, or a folder has a module or folder of it, or a module that does."""
    path = ROOT / place
    if path.is_file():
        return name in own(path) | {node.arg for node in nodes(path, ast.arg)}
    modules = list(path.glob("*.py"))
    there = {one.stem for one in modules} | {one.name for one in path.iterdir() if one.is_dir()}
    return name in there or any(name in own(one) for one in modules)


def test_names_that_pages_place_in_a_file_or_folder_are_there() -> None:
    cited = []
    for page in pages():
        for found in WITHIN.finditer(page.read_text()):
            place, inner = found[1] or found[3], NAME_OF.sub("", found[2] or found[4])
            if (ROOT / place).exists() and not place.endswith((".md", ".toml")):
                cited += [(named(page), place, name) for name in SPAN.findall(inner) if name.isidentifier()]
        cited += [(named(page), place, name) for name, place in NAME_OF.findall(page.read_text())]
    assert len(cited) > 40
    assert [one for one in cited if not lies_in(one[1], one[2])] == []


def test_a_name_in_another_folder_is_seen() -> None:
    assert lies_in("indexer/scan_processes/", "PagePeers")
    assert lies_in("indexer/scan_processes/core/", "pins")
    assert not lies_in("indexer/scan_processes/", "pins")
    assert not lies_in("indexer/scan_processes/", "_plain")
    assert not lies_in("keytide/wire/messages.py", "split")


def test_symbols_that_pages_name_are_there() -> None:
    cited = [(named(page), name) for page in pages() for name in SYMBOL.findall(page.read_text())]
    assert len(cited) > 10
    known = symbols() | OF_ARROW
    assert [(page, name) for page, name in cited if name not in known and not _is_setting(name)] == []


def unknown(text: str) -> bool:
    """Whether a text between backquotes has the form of a class, a call or a dotted name, and is none that
    there is. What is spelled as SQL is, in capitals, is held by the tests of its parser."""
    call = CALL.fullmatch(text)
    name = call[1] if call else text
    if name in OF_OTHERS or name.startswith(OF_OTHERS_BEGIN) or name.isupper():
        return False
    if CLASS.fullmatch(name) or (call and "." not in name):
        return name not in defined() and name not in defined_builtins()
    if not DOTTED.fullmatch(name) or FILE.fullmatch(f"`{name}`") or name in symbols() | OF_ARROW:
        return False
    first, _, rest = name.partition(".")
    if first in members():
        return rest not in members()[first]
    return not _is_setting(name) and name.rpartition(".")[2] not in defined()


# --- the same in the code -----------------------------------------------------------------------------------


@cache
def endings() -> set[str]:
    """What our modules define by the last parts of its name, two at least: `module.name`, `room.module`."""
    return {
        ".".join(parts[at:])
        for parts in (name.split(".") for name in symbols() if name.split(".")[0] in PRODUCT)
        for at in range(len(parts) - 1)
    }


@cache
def attributes() -> set[str]:
    """What is written behind a dot of an object of ours: members of classes, and what is put there."""
    found = set().union(*members().values())
    for path in sources(PRODUCT):
        found |= {node.attr for node in nodes(path, ast.Attribute) if isinstance(node.ctx, ast.Store)}
    return found


@cache
def variables() -> set[str]:
    """What functions call what they are given, and what they keep."""
    return {
        name
        for path in sources(PRODUCT)
        for name in (
            *(node.arg for node in nodes(path, ast.arg)),
            *(node.id for node in nodes(path, ast.Name) if isinstance(node.ctx, ast.Store)),
            *(node.attr for node in nodes(path, ast.Attribute) if isinstance(node.ctx, ast.Store)),
        )
    }


@cache
def libraries() -> set[str]:
    """What our modules import of others, by its own name and by the one that it has there."""
    found = {
        (module, alias)
        for path in sources(PRODUCT)
        for node in list[ast.Import | ast.ImportFrom](
            (*nodes(path, ast.Import), *nodes(path, ast.ImportFrom))
        )
        for alias in node.names
        for module in [getattr(node, "module", alias.name)]
    }
    return {
        name
        for module, alias in found
        if module.split(".")[0] not in PACKAGES
        for name in (module, module.split(".")[0], alias.name, alias.asname or alias.name)
    }


@cache
def modules() -> set[str]:
    """What our modules and folders are called."""
    return {part for path in sources(PRODUCT) for part in module_of(path).split(".")}


def leads_nowhere(name: str) -> bool:
    """Whether a dotted name in a docstring is none that there is. One of a package of ours is whole; others
    are `module.name`, `Class.name`, a setting, an attribute of a variable, of another library or a file."""
    first, _, rest = name.partition(".")
    if name.rpartition(".")[2] in FILES or _is_setting(name) or name in OF_OTHERS | OF_ARROW | entry_points():
        return False
    if first in PACKAGES:
        return name not in symbols()
    if name in endings() | libraries() or name.startswith(OF_OTHERS_BEGIN):
        return False
    if first in members():
        return rest not in members()[first]
    if {first, rest} <= modules():
        return True
    return first not in libraries() and not (first in variables() and rest.split(".")[-1] in attributes())


@cache
def entry_points() -> set[str]:
    """The groups by which our packages find one another."""
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"])


def test_dotted_names_in_the_code_are_there() -> None:
    """Between backquotes: in docstrings and comments, and in messages."""
    cited = [
        (named(path), name)
        for path in sources(PRODUCT)
        for name in SPAN.findall(text_of(path))
        if DOTTED.fullmatch(name)
    ]
    assert len(cited) > 400
    assert [(path, name) for path, name in cited if leads_nowhere(name)] == []


@pytest.mark.parametrize(
    ("name", "nowhere"),
    [
        ("keytide.wire.parts.split", False),
        ("keytide.wire.messages.split", True),
        ("validation.core.verdicts", False),
        ("validation.verdicts", True),
        ("fold.OWNER_KEY", False),
        ("Speakers.check", False),
        ("Speakers.chek", True),
        ("scan.max_query_bytes", False),
        ("scan.max_qwery_bytes", True),
        ("catalog.offset", False),
        ("catalog.offzet", True),
        ("time.monotonic", False),
    ],
)
def test_a_dotted_name_that_leads_nowhere_is_seen(name: str, nowhere: bool) -> None:
    assert leads_nowhere(name) is nowhere


def defined_builtins() -> set[str]:
    """What Python defines itself."""
    return set(dir(builtins))


def test_classes_functions_and_members_that_pages_name_are_there() -> None:
    looked_at = [(page, text) for page, text in spans() if CLASS.fullmatch(text) or CALL.fullmatch(text)]
    assert len(looked_at) > 50
    assert [(page, text) for page, text in spans() if unknown(text)] == []


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("AsyncClient", False),
        ("AsyncKlient", True),
        ("SnapshotGoneError", False),
        ("reset_session()", False),
        ("client.reset_session()", False),
        ("resett_session()", True),
        ("Client.query", False),
        ("Client.qwery", True),
        ("indexer.port", False),
        ("LOWER(x)", False),
        ("keytide.settings.settings.load_settings", False),
        ("keytide.settings.settings.load_setings", True),
    ],
)
def test_a_name_that_leads_nowhere_is_seen(text: str, gone: bool) -> None:
    assert unknown(text) is gone


def test_files_that_pages_name_without_their_folder_are_there() -> None:
    known = {path.name for path in tracked()} | {"keytide.toml", "people.json", "own_writes.py"}
    cited = [
        (named(page), file)
        for page in pages()
        for file, _ in FILE.findall(page.read_text())
        if "/" not in file
    ]
    assert len(cited) > 20
    assert [(page, file) for page, file in cited if file not in known] == []


def test_words_with_hyphens_that_pages_name_are_in_the_code() -> None:
    """Problem types, kinds of events, reasons, phases: whatever is spelled so."""
    cited = [(page, text) for page, text in spans() if HYPHENED.fullmatch(text)]
    assert len(cited) > 100
    known = constants() | {one.kind for one in errors.errors()}
    assert [(page, text) for page, text in cited if text not in known] == []


def test_error_types_that_pages_name_with_a_status_have_it() -> None:
    known = {(one.kind, one.status) for one in errors.errors()}
    cited = [
        (named(page), int(status), kind)
        for page in pages()
        for status, kinds in STATUS.findall(page.read_text())
        for kind in SPAN.findall(kinds)
    ]
    assert len(cited) > 40
    assert [one for one in cited if (one[2], one[1]) not in known] == []


def test_error_types_that_the_code_asks_for_are_there() -> None:
    """Where a `problem_type` is compared with a word, in product and tests; not those that tests make up."""
    made_up = {"some-type", "how", "a", "problem_type"}
    known = {one.kind for one in errors.errors()} | made_up
    asked = [
        (named(path), constant.value)
        for path in sources(PACKAGES)
        if "problem_type" in path.read_text()
        for node in nodes(path, ast.Compare)
        if "problem_type" in ast.unparse(node)
        for constant in ast.walk(node)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
    ]
    assert len(asked) > 60
    assert [(name, kind) for name, kind in asked if kind not in known] == []


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
    assert NEW not in known
    assert [(page, name) for page, name in cited if name not in known | {NEW}] == []


def served(path: str, method: str = "") -> bool:
    """Whether there is a route, whatever stands for the names in it; with a method, or with any. What is
    filled in may be a word of the route, too."""
    parts = path.rstrip("/.").split("/")
    return any(
        method in ("", of)
        and len(shape) == len(parts)
        and all(a == b or "{" in a or "{" in b for a, b in zip(shape, parts, strict=True))
        for of, shape in ((of, route.split("/")) for of, route in routes())
    )


routes = cache(rest.routes)


def test_routes_that_pages_name_are_there() -> None:
    """`METHOD /path`, or `/path` alone."""
    cited = [
        (named(page), method, path)
        for page in pages()
        for method, path in re.findall(r"\b(GET|POST|PATCH|DELETE) (/[\w/{}.<>-]*\w\}?)", page.read_text())
    ]
    assert len(cited) > 60
    assert [one for one in cited if not served(one[2], one[1])] == []
    alone = [(page, text) for page, text in spans() if re.fullmatch(r"/[a-z][\w/{}-]*", text)]
    assert len(alone) > 5
    below = {path for _, path in routes()}
    assert [
        (page, path)
        for page, path in alone
        if not served(path) and not any(route.startswith(f"{path}/") for route in below)
    ] == []


def test_routes_that_the_code_names_are_there() -> None:
    cited = [
        (named(path), one)
        for path in sources(PRODUCT)
        for one in PATH.findall(path.read_text())
        if not one.endswith("{")
    ]
    assert len(cited) > 50
    assert [(name, path) for name, path in cited if not served(path)] == []


def test_commands_that_the_code_names_are_there() -> None:
    """In messages, mostly: what to do next. (Those of the pages: `test_pages`.)"""
    cited = [
        (named(path), re.sub(r"\{[^}]*\}", "x", line))
        for path in sources(PRODUCT)
        for line in re.findall(r"`(keytide [^`\n{]+(?:\{[^}]*\})?)`", path.read_text())
    ]
    assert len(cited) > 60
    known = {" ".join(words) for words in commands.names()}
    assert [(name, line) for name, line in cited if not _is_command(line, known)] == []


def _is_command(line: str, known: set[str]) -> bool:
    """Whether a line begins with a command, and no word stands where the name of one would."""
    words = [word for word in line.split() if not word.startswith("-")]
    longest = max((n for n in range(1, len(words) + 1) if " ".join(words[:n]) in known), default=0)
    group = any(name.startswith(f"{' '.join(words[:longest])} ") for name in known)
    return longest > 1 or longest == len(words) or not group or line.startswith("keytide --")


def test_programs_and_targets_that_pages_and_code_name_are_there() -> None:
    """`python -m module`, `make target`."""
    cited = [
        (name, found.rstrip("."))
        for name, text in prose()
        for found in re.findall(r"python -m ([a-z][\w.]+)", text)
        if found.split(".")[0] in PACKAGES
    ]
    assert len(cited) > 20
    assert [(name, module) for name, module in cited if module not in symbols()] == []
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = [
        (name, target) for name, text in prose() for target in re.findall(r"`(?:\w+=\w+ )?make (\w+)", text)
    ]
    assert len(made) > 20
    assert [(name, target) for name, target in made if target not in targets] == []


# --- what there is, is told ---------------------------------------------------------------------------------


def test_what_there_is_is_told_by_a_page() -> None:
    """By one that somebody has written, where a user looks for it: those of docs/reference are made from what
    there is, and tell of everything. (Error types are looked up there, by name.)"""
    written = [page.read_text() for page in pages() if named(page.parent) != "docs/reference"]
    told = "\n".join(written)
    there = {
        "setting": [
            f"{section}.{name}".lstrip(".") for section, fields in settings.sections() for name in fields
        ],
        "metric": [one.name for lines in metrics.processes().values() for one in lines],
        "command": [" ".join(words) for words in commands.names()],
        "error type": [one.kind for one in errors.errors()],
    }
    for kind, names in there.items():
        assert len(names) > 15, kind
        text = told if kind != "error type" else (ROOT / "docs/reference/errors.md").read_text()
        missing = {name for name in names if not re.search(whole(re.escape(name)), text)}
        missing -= set(set_in_blocks(written)) if kind == "setting" else set()
        assert missing == set(), f"a {kind} that no page tells of"


def set_in_blocks(texts: list[str]) -> Iterator[str]:
    """The settings that blocks of TOML have, as `section.name`."""
    for text in texts:
        for _, block in re.findall(r"^( *)```toml\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL):
            for section, inner in tomllib.loads(block).items():
                yield from (f"{section}.{name}" for name in inner) if isinstance(inner, dict) else (section,)


PARTS_OF_PAGES = {"/", "/docs/{name}", "/page/{name}"}
"""The web page, and what it and the page of the routes load."""


def test_every_route_is_told_by_a_page() -> None:
    """As for the others, whatever stands there for names."""
    told = {
        tuple(path.rstrip("/.").split("/"))
        for page in pages()
        if named(page.parent) != "docs/reference"
        for path in re.findall(r"/[a-z][\w/{}.-]*", page.read_text())
    }
    assert len({path for _, path in routes()}) > 40
    assert {
        path
        for path in {path for _, path in routes()} - PARTS_OF_PAGES
        if not any(tells(one, path.split("/")) for one in told)
    } == set()


def tells(told: tuple[str, ...], route: list[str]) -> bool:
    """Whether a path is one of a route, with whatever in the place of its names."""
    return len(told) == len(route) and all(a == b or "{" in b for a, b in zip(told, route, strict=True))


def whole(name: str) -> str:
    """A pattern of a name by itself. (It begins with the name, which is sought much faster so.)"""
    return rf"{name}(?<![\w./-]{name})(?![\w-])"


def _is_setting(name: str) -> bool:
    """Settings of a section that is called as a package is: `indexer.port`."""
    section, _, rest = name.partition(".")
    return section in Settings.model_fields and rest in _members(section)


def _members(section: str) -> set[str]:
    model = Settings.model_fields[section].annotation
    return set(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else set()


def test_product_is_what_is_looked_at() -> None:
    assert set(PRODUCT) <= set(PACKAGES)
