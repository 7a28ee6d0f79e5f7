"""The rooms of the product (docs/adr/0025): how many files one has, that each says what it is, that a class
has one name and a name one class, and that no two files import one another, directly or around a corner."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from tests.unit.test_style import PRODUCT, named, nodes, sources, tree

MOST_FILES = 15
"""Of a room, `__init__.py` counted."""

Graph = dict[str, set[str]]


def module_of(path: Path) -> str:
    return named(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


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


def test_a_class_has_one_name_and_a_name_one_class() -> None:
    defined: dict[str, list[str]] = defaultdict(list)
    for path in sources(PRODUCT):
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(named(path))
    assert len(defined) > 500
    assert {name: files for name, files in defined.items() if len(files) > 1} == {}


@pytest.mark.parametrize("package", PRODUCT)
def test_rooms_are_small_and_say_what_they_are(package: str) -> None:
    rooms: dict[Path, int] = defaultdict(int)
    for path in sources((package,)):
        rooms[path.parent] += 1
    for room, files in rooms.items():
        assert files <= MOST_FILES, named(room)
        told = ast.get_docstring(tree(room / "__init__.py")) or ""
        assert len(told.splitlines()) > 1, f"{named(room)} does not say what lives there and who calls it"
