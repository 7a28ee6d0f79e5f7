"""The style of the repository, kept by a test (after TigerBeetle): what a linter does not know.

Each rule is in CONTRIBUTING.md. A rule that is wrong is changed there and here, together. What the Markdown
pages promise is in `test_pages`.
"""

from __future__ import annotations

import ast
import gc
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

from keytide.structure import STRUCTURES
from keytide.wire import messages

_N = TypeVar("_N", bound=ast.AST)
ROOT = Path(__file__).resolve().parents[2]
PRODUCT = (
    "keytide",
    "projector",
    "router",
    "indexer",
    "coordinator",
    "streaming",
    "deploy",
    "pyspark_keytide",
)
PACKAGES = (*PRODUCT, "benchmarks", "tests")

MAX_LINES = 400
LONGER = {"keytide/wire/messages.py": 750}
"""Files that may be longer, and how long. The messages are in one module by rule."""

MACHINE_PATHS = re.compile(r"(?<![\w./~-])/(?:[w]ork|[r]oot|[h]ome/\w+|[U]sers/\w+|[v]ar/folders)/")
INDEX_OPTIONS = re.compile(r"--(?:extra-)?[i]ndex-url|--[f]ind-links|--[t]rusted-host|^-i ", re.MULTILINE)
URLS = re.compile(r"\bhttps?://([^\s/:\"'`)>\]}]+)")
HOSTS = re.compile(
    r"127\.0\.0\.1|localhost|\{.*|.*\.example|www\.(?:apache|w3)\.org|\[::1\]|keepachangelog\.com|semver\.org"
)
"""The only hosts whose addresses may stand in the repository: none that a build fetches from."""

STRUCTS_ELSEWHERE = (
    *("keytide/model/timestamp.py", "keytide/wire/digests.py", "keytide/wire/entry_sums.py"),
    *("indexer/store/", "indexer/scan/", "indexer/scan_processes/", "streaming/"),
)
"""Where packed structs that never enter a topic may be defined: the timestamp (a part of messages), records
on disk, answers between nodes (and to verification) and tokens, what a node tells its scan processes, rows of
Spark's shuffle."""

HTTP_LIBRARIES = re.compile(r"(?:aiohttp|httpx|requests|urllib3|urllib\.request|http\.client)\b")
ASKS_OVER_HTTP = {
    "keytide/http/nodes.py": "how nodes are asked from an event loop",
    "keytide/http/blocking_nodes.py": "how they are asked from threads",
    "keytide/http/tls.py": "httpx's list of the usual authorities; it asks nobody",
    "keytide/client/client.py": "the type of a transport that users give",
    "keytide/client/with_urllib3.py": "the clients of users, who have other credentials, retries and streams",
    "keytide/client/with_aiohttp.py": "the same on event loops",
    "keytide/client/with_httpx.py": "the clients of users, behind a proxy or with a transport of their own",
    "keytide/client/transports.py": "the type of a transport that users give",
    "coordinator/http/forwarding.py": "what one that stands by was asked, with the credential of who asked",
    "keytide/cli/admin.py": "the command asks the coordinator, as a user",
    "keytide/cli/nodes.py": "the command looks whether a node that a user names is there",
    "indexer/scan_processes/passing.py": "what a scan process was asked, on to its node over a local socket",
    "deploy/probes.py": "whether a process that was started is ready",
    "deploy/doctor.py": "what time a server has, by a header of its answer",
}
"""The only modules of the product that may make requests over HTTP themselves, and for what."""

THREADS = {"Thread", "Timer", "start_new_thread"}
STARTS_THREADS = {"keytide/process/worker.py": "the one way that a thread begins, fails and ends"}
"""The only modules of the product that may make a thread themselves, and why. (Pools hand errors to whoever
asks for the result.)"""


OTHER_WORDS = {
    ("coordinator/statements/advice.py", "hash"): (2, "a kind of partitioning"),
    ("keytide/definition/clauses/create.py", "hash"): (1, "a kind of partitioning"),
    ("keytide/definition/clauses/partitioning.py", "hash"): (
        5,
        "a kind of partitioning, and its word in SQL",
    ),
    ("keytide/definition/index.py", "hash"): (4, "a kind of partitioning"),
    ("keytide/definition/normal.py", "hash"): (1, "a kind of partitioning"),
    ("keytide/query/plan/suggest.py", "spatial"): (1, "the statement that serves a condition on places"),
    ("streaming/core/extent_projection.py", "hash"): (5, "a column of hashes of documents' ids"),
    ("streaming/verify/core/newest.py", "hash"): (5, "a column of hashes of documents' ids"),
}
"""Where the product has a text that is the name of a structure, how often, and what it says there."""
_MAY_NAME = re.compile(
    # Names of structures in quotes, of their classes, and imports that may be of their modules.
    rf"[\"'}}]\s*(?i:using )?\s*(?i:{'|'.join(STRUCTURES)})\s*[\"'{{]"
    rf"|\b(?:{'|'.join(one.__name__ for one in STRUCTURES.values())})\b"
    rf"|\bimport\s+keytide\.structure|\bkeytide\.structure(?:\.\w+)?\s+import\b"
)


@cache
def tracked() -> tuple[Path, ...]:
    """All files of the repository, those of tomorrow's commit included."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    return tuple(path for name in sorted(listed.split("\0")) if name and (path := ROOT / name).is_file())


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def sources(packages: tuple[str, ...]) -> Iterator[Path]:
    for path in tracked():
        if path.suffix == ".py" and named(path).split("/")[0] in packages:
            yield path


@cache
def text_of(path: Path) -> str:
    """What is written in a file. A rule parses those alone that have the words for what it looks for."""
    return path.read_text()


@cache
def tree(path: Path) -> ast.Module:
    """What a module parses to. (Looking for cycles among so many nodes, meanwhile, takes three times as long
    as to parse them.)"""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text_of(path))
    finally:
        if enabled:
            gc.enable()


@cache
def _by_type(path: Path) -> dict[type[ast.AST], list[Any]]:
    """All nodes of a module, so that it is walked once: the repository has a million, and a dozen rules."""
    todo: list[ast.AST] = [tree(path)]
    found: dict[type[ast.AST], list[Any]] = {}
    for node in todo:  # (grows meanwhile)
        found.setdefault(type(node), []).append(node)
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                todo.append(value)
            elif isinstance(value, list):
                todo += [one for one in value if isinstance(one, ast.AST)]
    return found


def nodes(path: Path, *types: type[_N]) -> Iterator[_N]:
    """The nodes of a module that are of these types (not of types that derive from them)."""
    for one in types:
        yield from _by_type(path).get(one, ())


def texts() -> Iterator[tuple[str, str]]:
    """(name, text) of every tracked text file."""
    for path in tracked():
        try:
            yield named(path), text_of(path)
        except UnicodeDecodeError:
            continue


def test_the_rules_see_the_whole_repository() -> None:
    """A rule that looks at nothing would always hold."""
    names = {named(path) for path in tracked()}
    assert {"README.md", "ARCHITECTURE.md", "docs/tune.md", "requirements.txt", ".ci/run"} <= names
    assert {name.split("/")[0] for name in map(named, sources(PACKAGES))} == set(PACKAGES)


# --- code -------------------------------------------------------------------------------------------------


def test_product_code_has_no_bare_assert() -> None:
    """It disappears under -O; `keytide.errors.invariant` stays."""
    places = [path for path in sources(PRODUCT) if "assert" in text_of(path)]
    found = [f"{named(path)}:{node.lineno}" for path in places for node in nodes(path, ast.Assert)]
    assert found == []


_MAKES_PRODUCER = re.compile(r"\bProducer\s*\(")


def test_every_producer_keeps_the_order_of_what_it_writes() -> None:
    """librdkafka's does so only when it is told: a batch that is tried again, as the first one to a new topic
    may be, would come after the next. (kafka-python's does, and one of transactions.)"""
    found = []
    for path in sources(("benchmarks", "tests")):
        if not _MAKES_PRODUCER.search(text_of(path)):  # (all functions in words take ten seconds)
            continue
        for function in nodes(path, ast.FunctionDef):
            called = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
            calls = {ast.unparse(one) for one in called if isinstance(one, (ast.Name, ast.Attribute))}
            made = calls & {"Producer", "confluent_kafka.Producer"}
            text = ast.unparse(function) if made else ""
            if made and "'enable.idempotence': True" not in text and "'transactional.id'" not in text:
                found.append(f"{named(path)}:{function.lineno}")
    assert found == []


_MAY_IMPORT_HTTP = re.compile(r"\b(?:import|from)\b[^\n]*\b(?:aiohttp|httpx|requests|urllib3?|http)\b")


def http_imports(path: Path) -> set[str]:
    """What a module imports to ask others over HTTP, whenever it does."""
    if not _MAY_IMPORT_HTTP.search(text_of(path)):
        return set()
    found = {alias.name for node in nodes(path, ast.Import) for alias in node.names}
    found |= {f"{node.module}.{alias.name}" for node in nodes(path, ast.ImportFrom) for alias in node.names}
    return {name for name in found if HTTP_LIBRARIES.match(name)}


def test_http_is_spoken_by_few() -> None:
    """How nodes are asked, tried again and understood is said once: whoever asks one takes a client of
    `keytide.http`, with its connections, its trust and its credential."""
    found = {named(path) for path in sources(PRODUCT) if http_imports(path)}
    assert found - ASKS_OVER_HTTP.keys() == set()
    assert ASKS_OVER_HTTP.keys() - found == set(), "an exception that is no longer needed"


@pytest.mark.parametrize(
    "line",
    ["import httpx", "from aiohttp import ClientSession", "import urllib.request", "from http import client"],
)
def test_whoever_speaks_http_is_seen(line: str, tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(f"def ask():\n    {line}\n")
    assert http_imports(tmp_path / "asks.py")


def structures_named(path: Path) -> list[tuple[int, str]]:
    """Where a module names a structure (line, name): by a text that is its name and nothing else, or by its
    class, or the module of that."""
    if not _MAY_NAME.search(text_of(path)):
        return []
    classes = {one.__name__: name for name, one in STRUCTURES.items()}
    modules = {one.__module__: name for name, one in STRUCTURES.items()}
    found: list[tuple[int, str]] = []
    for text in nodes(path, ast.Constant):
        said = text.value.strip().lower().removeprefix("using ") if isinstance(text.value, str) else ""
        if said in STRUCTURES:
            found.append((text.lineno, said))
    for line in nodes(path, ast.Import):
        found += [(line.lineno, modules[one.name]) for one in line.names if one.name in modules]
    for taken in nodes(path, ast.ImportFrom):
        of = taken.module or ""
        for one in taken.names if of.startswith("keytide.structure") else ():
            name = classes.get(one.name) or modules.get(f"{of}.{one.name}")
            if name or one.name == "*":
                found.append((taken.lineno, name or of))
    found += [(one.lineno, classes[one.attr]) for one in nodes(path, ast.Attribute) if one.attr in classes]
    return found


def test_nobody_asks_for_a_structure_by_name() -> None:
    """What differs from one to the other, its interface says (ADR 27): so a further one is a module and a
    line in the registry."""
    places = [path for path in sources(PRODUCT) if not named(path).startswith("keytide/structure/")]
    found = Counter((named(path), name) for path in places for _, name in structures_named(path))
    assert found == {place: times for place, (times, _) in OTHER_WORDS.items()}
    scripts = [(name, text) for name, text in texts() if name.endswith(".js")]
    quoted = re.compile(rf"structure\s*[!=]==?|[\"'`](?:{'|'.join(STRUCTURES)})[\"'`]", re.IGNORECASE)
    assert scripts
    assert [name for name, text in scripts if quoted.search(text)] == []


@pytest.mark.parametrize(
    "line",
    [
        "if definition.using == 'spatial': ...",
        "found = one.structure.name not in ('btree', 'hash')",
        "if using != 'USING spatial ': ...",
        "from keytide.structure.spatial import Spatial, frame_of",
        "from keytide.structure.spatial import *",
        "from keytide.structure import (\n    spatial,\n)",
        "import keytide.structure.spatial as s",
        "found = isinstance(x, keytide.structure.hashed.Hash)",
        "most = {'hash': 1, 'btree': 2}[using]",
        "most = {'hash': 1}.get(using)",
        "match using:\n    case 'hash': ...",
        "found = using.startswith('spatial')",
        "NAMES = {'spatial'}",
        "S = 'spatial'",
        "S = f'USING spatial {options}'",
        "found = type(structure).__name__ == 'BTree'",
        "found = one.kind == 'hash'",
        "structure_of('btree', 1)",
    ],
)
def test_whoever_names_a_structure_is_seen(line: str, tmp_path: Path) -> None:
    (tmp_path / "names.py").write_text(line + "\n")
    assert structures_named(tmp_path / "names.py")
    (tmp_path / "may.py").write_text(
        '"""An index USING hash, for instance."""\nfrom keytide.structure.spatial import PLANAR_SRID\n'
        "from keytide.structure import DEFAULT_STRUCTURE, place_columns\n"
    )
    assert not structures_named(tmp_path / "may.py")


def threads_made(path: Path) -> list[str]:
    """Where a module makes threads by itself, or a class of them: bare ones, whose errors nobody hears."""
    if not any(word in text_of(path) for word in THREADS):
        return []
    made = [(node.lineno, node.func) for node in nodes(path, ast.Call)]
    made += [(node.lineno, base) for node in nodes(path, ast.ClassDef) for base in node.bases]
    found = [line for line, of in made if isinstance(of, ast.Attribute) and of.attr in THREADS]
    found += [
        node.lineno
        for node in nodes(path, ast.ImportFrom)
        if node.module in ("threading", "_thread") and THREADS & {alias.name for alias in node.names}
    ]
    return [f"line {line}" for line in found]


def test_threads_of_the_product_are_workers() -> None:
    """They are a `keytide.process.worker.Worker`, which says what its work fails with."""
    found = {named(path): lines for path in sources(PRODUCT) if (lines := threads_made(path))}
    assert {name: lines for name, lines in found.items() if name not in STARTS_THREADS} == {}
    assert STARTS_THREADS.keys() - found.keys() == set(), "an exception that is no longer needed"


@pytest.mark.parametrize(
    "code",
    [
        "threading.Thread(target=print).start()",
        "from threading import Thread as T",
        "threading.Timer(1, print)",
        "class Mine(threading.Thread): ...",
    ],
)
def test_a_bare_thread_is_seen(code: str, tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text(f"import threading\n{code}\n")
    assert threads_made(tmp_path / "bare.py")
    (tmp_path / "fine.py").write_text("import threading\nowner: threading.Thread | None = None\n")
    assert not threads_made(tmp_path / "fine.py")


def test_no_file_of_product_code_is_too_long() -> None:
    lengths = {named(path): text_of(path).count("\n") for path in sources(PRODUCT)}
    assert {name: n for name, n in lengths.items() if n > LONGER.get(name, MAX_LINES)} == {}
    assert all(lengths[name] > MAX_LINES for name in LONGER), "an exception that is no longer needed"


_SAYS_WHAT_IT_IS = re.compile(r'(?:#.*\n|\s)*r?"""\s*[^\s"]')
"""A module that begins with its docstring. (Ruff has it in such quotes; parsing a thousand takes seconds.)"""


def test_every_package_and_every_module_says_what_it_is() -> None:
    silent = [
        named(path)
        for path in sources(PACKAGES)
        if text_of(path).strip() and not _SAYS_WHAT_IT_IS.match(text_of(path))
    ]
    packages = {path.parent for path in sources(PACKAGES)}
    assert silent == []
    assert [named(folder) for folder in sorted(packages) if not (folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize("package", PRODUCT)
def test_a_package_says_who_may_import_it(package: str) -> None:
    told = " ".join((ast.get_docstring(tree(ROOT / package / "__init__.py")) or "").split())
    for words in (
        "What lives here:",
        "Who may import it:",
        "What it may import:",
        "Not to be touched lightly:",
    ):
        assert words in told


# --- messages ---------------------------------------------------------------------------------------------


def packed_structs(path: Path) -> list[str]:
    """Names of the classes in a module that are packed as arrays."""
    if "array_like" not in text_of(path):
        return []
    return [
        node.name
        for node in nodes(path, ast.ClassDef)
        if any(keyword.arg == "array_like" for keyword in node.keywords)
    ]


def test_messages_are_defined_in_one_module() -> None:
    found = {
        named(path): structs
        for path in sources(PRODUCT)
        if (structs := packed_structs(path))
        and named(path) != "keytide/wire/messages.py"
        and not named(path).startswith(STRUCTS_ELSEWHERE)
    }
    assert found == {}, "messages belong in keytide/wire/messages.py"
    assert packed_structs(ROOT / "keytide/wire/messages.py")


def test_every_message_can_be_read() -> None:
    """Each class that derives from the base of all messages is in the union that `decode` takes."""
    base = messages.SegmentBatch.__mro__[1]
    assert set(base.__subclasses__()) == set(messages.Message.__args__)


# --- what must not be in the repository -------------------------------------------------------------------


def test_no_path_of_a_machine() -> None:
    found = [(name, hit[0]) for name, text in texts() if (hit := MACHINE_PATHS.search(text))]
    assert found == []


def test_no_host_that_packages_or_jars_come_from() -> None:
    hosts = [
        (name, host) for name, text in texts() for host in URLS.findall(text) if not HOSTS.fullmatch(host)
    ]
    assert hosts == []
    options = [(name, hit[0]) for name, text in texts() if (hit := INDEX_OPTIONS.search(text))]
    assert options == []


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("see /ho" + "me/ann/notes", MACHINE_PATHS),
        ("in /wo" + "rk/x", MACHINE_PATHS),
        ("pip --ind" + "ex-url x", INDEX_OPTIONS),
        ("-i x", INDEX_OPTIONS),
    ],
)
def test_the_patterns_match_what_they_are_for(text: str, pattern: re.Pattern[str]) -> None:
    assert pattern.search(text)
