"""The style of the repository, kept by a test (after TigerBeetle): what a linter does not know.

Each rule is in CONTRIBUTING.md. A rule that is wrong is changed there and here, together. What the Markdown
pages promise is in `test_pages`.
"""

from __future__ import annotations

import ast
import gc
import re
import subprocess
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

from keytide.structure import STRUCTURES
from keytide.wire import messages

_N = TypeVar("_N", bound=ast.AST)
ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("keytide", "projector", "router", "indexer", "coordinator", "streaming", "deploy")
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
def tree(path: Path) -> ast.Module:
    """What a module parses to. (Looking for cycles among so many nodes, meanwhile, takes three times as long
    as to parse them.)"""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text())
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
            yield named(path), path.read_text()
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
    found = [f"{named(path)}:{node.lineno}" for path in sources(PRODUCT) for node in nodes(path, ast.Assert)]
    assert found == []


def test_every_producer_keeps_the_order_of_what_it_writes() -> None:
    """librdkafka's does so only when it is told: a batch that is tried again, as the first one to a new topic
    may be, would come after the next. (kafka-python's does, and one of transactions.)"""
    found = []
    for path in sources(("benchmarks", "tests")):
        if "Producer" not in path.read_text():  # (all functions in words take ten seconds)
            continue
        for function in nodes(path, ast.FunctionDef):
            calls = {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
            made = calls & {"Producer", "confluent_kafka.Producer"}
            text = ast.unparse(function) if made else ""
            if made and "'enable.idempotence': True" not in text and "'transactional.id'" not in text:
                found.append(f"{named(path)}:{function.lineno}")
    assert found == []


def http_imports(path: Path) -> set[str]:
    """What a module imports to ask others over HTTP, whenever it does."""
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


def structures_asked_for(path: Path) -> list[str]:
    """Where a module asks whether a structure is a certain one: by its name, or by its class. (`hash` is a
    kind of partitioning, too.)"""
    classes = {one.__name__ for one in STRUCTURES.values()}
    asked: list[ast.AST] = [
        node
        for node in nodes(path, ast.ImportFrom)
        if (node.module or "").startswith("keytide.structure") and classes & {one.name for one in node.names}
    ]
    for compared in nodes(path, ast.Compare):
        sides = [compared.left, *compared.comparators]
        of_partitions = any(ast.unparse(one).endswith("kind") for one in sides)
        said = {one.value for side in sides for one in ast.walk(side) if isinstance(one, ast.Constant)}
        if _names_structure(said - {"hash"} if of_partitions else said):
            asked.append(compared)
    asked += [one for one in nodes(path, ast.Dict) if _names_structure({_constant(key) for key in one.keys})]
    asked += [one for one in nodes(path, ast.MatchValue) if _names_structure({_constant(one.value)})]
    return [f"{named(path) if path.is_relative_to(ROOT) else path.name}:{one.lineno}" for one in asked]  # type: ignore[attr-defined]


def _constant(node: ast.AST | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _names_structure(values: Collection[object]) -> bool:
    said = {one.strip().lower().removeprefix("using ") for one in values if isinstance(one, str)}
    return bool(said & STRUCTURES.keys())


def test_nobody_asks_for_a_structure_by_name() -> None:
    """What differs from one to the other, its interface says (ADR 27): so a further one is a module and a
    line in the registry."""
    places = [path for path in sources(PRODUCT) if not named(path).startswith("keytide/structure/")]
    assert [found for path in places for found in structures_asked_for(path)] == []
    scripts = [(name, text) for name, text in texts() if name.endswith(".js")]
    assert scripts
    assert [name for name, text in scripts if re.search(r"structure\s*[!=]==?", text)] == []


@pytest.mark.parametrize(
    "line",
    [
        "if definition.using == 'spatial': ...",
        "found = one.structure.name not in ('btree', 'hash')",
        "if using != 'USING spatial ': ...",
        "from keytide.structure.spatial import Spatial, frame_of",
        "most = {'hash': 1, 'btree': 2}[using]",
        "match using:\n    case 'hash': ...",
    ],
)
def test_whoever_asks_for_a_structure_by_name_is_seen(line: str, tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(line + "\n")
    assert structures_asked_for(tmp_path / "asks.py")
    (tmp_path / "may.py").write_text("if at.partition_kind == 'hash' or kind == 'hash': ...\n")
    assert not structures_asked_for(tmp_path / "may.py")


def threads_made(path: Path) -> list[str]:
    """Where a module makes threads by itself, or a class of them: bare ones, whose errors nobody hears."""
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
    lengths = {named(path): path.read_text().count("\n") for path in sources(PRODUCT)}
    assert {name: n for name, n in lengths.items() if n > LONGER.get(name, MAX_LINES)} == {}
    assert all(lengths[name] > MAX_LINES for name in LONGER), "an exception that is no longer needed"


def test_every_package_and_every_module_says_what_it_is() -> None:
    silent = [
        named(path)
        for path in sources(PACKAGES)
        if not (ast.get_docstring(tree(path)) or "").strip() and path.read_text().strip()
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
