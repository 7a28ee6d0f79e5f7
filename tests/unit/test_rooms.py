"""The rooms of the product (docs/adr/0025): how many files one has, that each says what it is and who calls
it, and that this is so; that a type has one name and a name one type, and that no two files import one
another, directly or around a corner; that they are drawn as they may be imported (`pyproject.toml`)."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.unit.test_style import PACKAGES, PRODUCT, ROOT, named, nodes, sources, text_of, tree

MOST_FILES = 13
"""Of a room, `__init__.py` counted."""
MORE_FILES = {
    "indexer/hosting": (15, "one slice at work: `slice_runner`, and a file for each of what it is helped by"),
    "indexer/slice": (15, "one machine: `core`, and a file for each state and each kind of event"),
    "indexer/store/lmdb": (15, "one store: what reads, writes, folds and loads its three levels"),
    "keytide/cli": (15, "a file for each group of commands, which know nothing of one another"),
    "keytide/definition": (14, "one language: parsing, meaning and rendering of each sort of statement"),
    "keytide/geometry/drawn": (15, "one file for each question that numpy and shapely answer of a drawing"),
}
"""Rooms that may have more, how many, and why they are not two rooms."""

CALLERS = re.compile(r"\b(?:[Cc]alled|[Ii]mported|[Tt]old|[Dd]riven|([Ss]tarted)) by |Who may import it: ")
"""How a room says who calls it; what follows, up to the end of the clause, names some of them. Who starts it
has its name in a string."""
OUTSIDE = {"pyspark_keytide": "Spark only"}
"""Rooms that nobody in the repository imports, and what they say of that."""

Graph = dict[str, set[str]]


def module_of(path: Path) -> str:
    return named(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def imports() -> Graph:
    """Module -> the modules that it imports, whenever it does."""
    modules = {module_of(path): path for path in sources(PRODUCT)}
    graph: Graph = {}
    for module, path in modules.items():
        found = {alias.name for node in nodes(path, ast.Import) for alias in node.names}
        for node in nodes(path, ast.ImportFrom):
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & modules.keys() or {node.module or ""}
        graph[module] = (found & modules.keys()) - {module}
    return graph


def circles(graph: Graph) -> list[list[str]]:
    """Sets of modules each of which reaches each other one (Tarjan's strongly connected components)."""
    found: list[list[str]] = []
    low: dict[str, int] = {}
    path: list[str] = []

    def visit(module: str) -> None:
        at = low[module] = len(low)
        path.append(module)
        for other in sorted(graph[module]):
            if other not in low:
                visit(other)
            if other in path:
                low[module] = min(low[module], low[other])
        if low[module] == at:
            circle = path[path.index(module) :]
            del path[-len(circle) :]
            if len(circle) > 1:
                found.append(sorted(circle))

    for module in sorted(graph):
        if module not in low:
            visit(module)
    return found


def test_no_two_files_import_one_another() -> None:
    graph = imports()
    assert sum(map(len, graph.values())) > 1_000
    assert circles(graph) == []


def test_a_circle_is_seen() -> None:
    graph: Graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set(), "e": {"a"}}
    assert circles(graph) == [["a", "b", "c"]]


UNIONS = {"Event", "Instruction", "Message"}
"""Of the classes of what goes into a core, what comes out of it, and what is sent: each core has its own, and
knows no other's."""
TWICE = {"Row": "(key, value) of a store's tables; of the clients it is what users call so"}
_TYPE = re.compile(r"[A-Z][A-Z0-9]*[a-z]\w*")
"""What a class or an alias of types is called; not a constant."""


def type_names(path: Path) -> Iterator[tuple[str, str]]:
    """The top-level names of types in a module, and what each says: a class itself, an alias what it stands
    for."""
    for node in tree(path).body:
        match node:
            case ast.ClassDef(name=name):
                yield name, named(path)
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if _TYPE.fullmatch(name) and isinstance(value, (ast.Subscript, ast.BinOp)):
                if name not in UNIONS or not isinstance(value, ast.BinOp):
                    yield name, _meaning(value)


def _meaning(value: ast.expr) -> str:
    said = ast.unparse(value).replace("npt.", "")
    if said.startswith("Annotated["):
        return "a parameter"  # what users call so, in REST and in commands
    return said


def test_a_type_has_one_name_and_a_name_one_type() -> None:
    """Aliases may say the same in several places."""
    defined: dict[str, dict[str, str]] = defaultdict(dict)
    for path in sources(PRODUCT):
        for name, meaning in type_names(path):
            defined[name].setdefault(meaning, named(path))
    assert len(defined) > 1_000
    several = {name: sorted(places.values()) for name, places in defined.items() if len(places) > 1}
    assert several.keys() - TWICE.keys() == set(), several
    assert TWICE.keys() <= several.keys(), "an exception that is no longer needed"


# --- who calls a room --------------------------------------------------------------------------------------


def within(module: str, room: str) -> bool:
    return module == room or module.startswith(f"{room}.")


def callers(told: str) -> Iterator[tuple[str, list[str], bool, bool]]:
    """What a docstring says of who calls the room: the words, modules and rooms that it names, whether nobody
    else does, whether they start it. Brackets are beside it."""
    flat = re.sub(r"\([^()]*\)", "", " ".join(told.split()))
    for match in CALLERS.finditer(flat):
        clause = re.split(r"[.;](?: |$)", flat[match.end() :])[0]
        names = [name for name in re.findall(r"`([a-z_.]+)`", clause) if name.split(".")[0] in PACKAGES]
        yield clause, names, bool(re.search(r"\b(?:only|alone|nobody)\b", clause)), match[1] is not None


def starts(name: str, room: str, texts: dict[str, str]) -> bool:
    """Whether a module has a room's name, or how it begins, in a string."""
    parent, _, last = room.rpartition(".")
    words = (f'"{room}"', f'"{last}"', f'"{parent or room}.{{')
    return any(word in text for module, text in texts.items() if within(module, name) for word in words)


def faults(room: str, told: str, graph: Graph, texts: dict[str, str]) -> list[str]:
    """What is not so of what a room's docstring says of who calls it.

    Args:
        graph: module -> what it imports, of the product.
        texts: module -> what is written in it, tests and benchmarks too.
    """
    importers = {
        module
        for module, others in graph.items()
        if not within(module, room) and any(within(other, room) for other in others)
    }
    importing = f"from {room}"
    said, found = list(callers(told)), []
    for _, names, only, starting in said:
        for name in names:
            if starting:
                so = starts(name, room, texts)
            elif name.split(".")[0] in PRODUCT:
                so = any(within(module, name) for module in importers)
            else:
                so = any(importing in text for module, text in texts.items() if within(module, name))
            if not so:
                found.append(f"{room}: not by {name}")
        if only:
            others = [one for one in importers if not any(within(one, name) for name in names)]
            found += [f"{room}: also by {one}" for one in sorted(others)]
    if not any(names for _, names, _, _ in said) and OUTSIDE.get(room, "?") not in {one[0] for one in said}:
        found.append(f"{room}: by whom?")
    return found


def test_rooms_say_who_calls_them() -> None:
    graph = imports()
    texts = {module_of(path): text_of(path) for path in sources(PACKAGES)}
    rooms = [path.parent for path in sources(PRODUCT) if path.name == "__init__.py"]
    assert len(rooms) > 90
    found = []
    for room in rooms:
        told = ast.get_docstring(tree(room / "__init__.py")) or ""
        found += faults(module_of(room), told, graph, texts)
    assert found == []


def test_a_caller_that_is_none_is_seen() -> None:
    graph: Graph = {"indexer.a.x": set(), "indexer.b": {"indexer.a.x"}, "indexer.c.y": {"indexer.a"}}
    texts = {"deploy.cluster": 'start("indexer")', "tests.kit": "from indexer.a.x import X"}

    def of(told: str, room: str = "indexer.a") -> list[str]:
        return faults(room, told, graph, texts)

    assert (
        of("What it is.\n\nCalled by `indexer.b`\n(`x`), and the simulation. `indexer.d` is another.") == []
    )
    assert of("Imported by `indexer.b` and `indexer.c` only.") == []
    assert of("Called by `tests.kit` and `indexer.c`.") == []
    assert of("Called by `tests.other`.") == ["indexer.a: not by tests.other"]
    assert of("Told by `indexer.b` only; more.") == ["indexer.a: also by indexer.c.y"]
    assert of("Driven by `indexer.b` and `indexer.d`.") == ["indexer.a: not by indexer.d"]
    assert of("It is called by the one above.") == ["indexer.a: by whom?"]
    assert of("Started by `deploy.cluster`.", "indexer") == []
    assert of("Started by `deploy.cluster`.") == ["indexer.a: not by deploy.cluster"]


# --- how they are drawn ------------------------------------------------------------------------------------


def test_rooms_are_drawn_as_they_may_be_imported() -> None:
    """The drawing of ARCHITECTURE.md is the layers of pyproject.toml: room by room, from top to bottom."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {one["containers"][0]: one["layers"] for one in contracts if one["type"] == "layers"}
    page = (ROOT / "ARCHITECTURE.md").read_text()
    drawn = dict(re.findall(r"^(\w+(?:/\w+)*)/ +(\S.* ─► .*)$", page, re.MULTILINE))
    assert {room.replace("/", "."): line.split(" ─► ") for room, line in drawn.items()} == {
        room: [layer.replace(" | ", ", ").replace(" : ", " ◄─► ") for layer in order]
        for room, order in layers.items()
    }


@pytest.mark.parametrize("package", PRODUCT)
def test_rooms_are_small_and_say_what_they_are(package: str) -> None:
    rooms: dict[Path, int] = defaultdict(int)
    for path in sources((package,)):
        rooms[path.parent] += 1
    for room, files in rooms.items():
        most, _ = MORE_FILES.get(named(room), (MOST_FILES, ""))
        assert files <= most, named(room)
        told = ast.get_docstring(tree(room / "__init__.py")) or ""
        assert len(told.splitlines()) > 1, f"{named(room)} does not say what lives there and who calls it"


def test_rooms_that_may_have_more_files_have_them() -> None:
    for room, (most, why) in MORE_FILES.items():
        assert MOST_FILES < most == len(list((ROOT / room).glob("*.py"))), f"{room}: {why}"
