"""Nothing of the product is there that nothing of the product uses: top-level names, and methods. What tests
alone need stands in tests.

A top-level name is used where its own module loads it, and where another one imports and loads it, or has it
as an attribute of what it imports; a method where anything has an attribute of its name. Either may be said
by a text that is this name and nothing else. It is not used within its own definition. So what is found is
unused, but not all that is unused is found.
"""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.test_rooms import module_of
from tests.unit.test_style import PRODUCT, ROOT, named, nodes, sources, text_of, texts, tree

OFFERED = ("keytide/client/", "streaming/source/", "pyspark_keytide/")
"""What users import: a page may be the only one that uses it."""
TELLS_NOBODY = {
    *("property", "setter", "staticmethod", "classmethod", "abstractmethod", "override", "overload", "final"),
    *("cache", "cached_property", "lru_cache", "contextmanager", "asynccontextmanager", "dataclass", "wraps"),
    *("FlowMethod", "FlowStream", "runtime_checkable", "total_ordering"),
}
"""Decorators that change what they are given. Any other one hands it to who will call it: a route, a command,
a check of a field."""
_WORD = re.compile(r"[A-Za-z_]\w*")


class Definition(NamedTuple):
    """A name, what it stands for, and in which class of which module."""

    path: Path
    within: str
    name: str
    node: ast.stmt

    def __str__(self) -> str:
        return f"{named(self.path)}:{self.node.lineno} {self.within}{'.' * bool(self.within)}{self.name}"


def uses(nodes_: Iterator[ast.AST], aliases: dict[str, str]) -> Counter[str]:
    """How often nodes use each name; `aliases` says what a name is called where it comes from."""
    found: Counter[str] = Counter()
    for node in nodes_:
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                found[aliases.get(name, name)] += 1
            case ast.Attribute(attr=name, ctx=ast.Load()):
                found[name] += 1
            case ast.Constant(value=str(text)) if text.isidentifier():
                found[text] += 1
    return found


def aliases_of(path: Path) -> dict[str, str]:
    return {a.asname: a.name for node in nodes(path, ast.ImportFrom) for a in node.names if a.asname}


def uses_of(path: Path) -> Counter[str]:
    """Of a whole module, but for the lists of what it exports and of which attributes there are."""
    found = uses(nodes(path, ast.Name, ast.Attribute, ast.Constant), aliases_of(path))
    for node in nodes(path, ast.Assign):
        if ast.unparse(node.targets[0]) in ("__all__", "__slots__"):
            found.subtract(uses(ast.walk(node.value), {}))
    return found


def definitions(path: Path) -> Iterator[Definition]:
    """The top-level names of a module, and the methods of its classes."""
    for node in tree(path).body:
        yield from (Definition(path, "", name, node) for name in names_of(node))
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    for name in names_of(method):
                        yield Definition(path, node.name, name, method)


def names_of(node: ast.stmt) -> list[str]:
    """What a statement defines; without names that Python itself uses, and without what is handed on."""
    names: list[str] = []
    match node:
        case ast.Assign(targets=targets):
            found = [one for target in targets for one in ast.walk(target)]
            names = [one.id for one in found if isinstance(one, ast.Name)]
        case ast.AnnAssign(target=target):
            names = [ast.unparse(target)]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            names = [] if handed_on(node.decorator_list) else [node.name]
    return [name for name in names if not name.startswith("__")]


def handed_on(decorators: list[ast.expr]) -> bool:
    called = [one.func if isinstance(one, ast.Call) else one for one in decorators]
    return any(ast.unparse(one).rpartition(".")[2] not in TELLS_NOBODY for one in called)


def overrides(one: Definition) -> bool:
    """Whether a method is one that a class of others has, too, and calls."""
    if not one.within:
        return False
    class_ = getattr(importlib.import_module(module_of(one.path)), one.within)
    others = (base for base in class_.__mro__ if base.__module__.partition(".")[0] not in PRODUCT)
    return any(one.name in vars(base) for base in others)


def entry_points() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points = {**project["scripts"], **project["entry-points"]["keytide.commands"]}
    return {point.partition(":")[2] for point in points.values()}


def shown() -> set[str]:
    """The words of code that pages show to users."""
    pages = [text for name, text in texts() if name == "README.md" or re.match(r"docs/[\w-]+\.md", name)]
    code = (one for text in pages for one in re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))
    return set(_WORD.findall(" ".join(code)))


def taken(path: Path) -> set[str]:
    """What a module has of others by importing it, or (by `getattr`) by its name."""
    loaded = {node.id for node in nodes(path, ast.Name) if isinstance(node.ctx, ast.Load)}
    imported = [alias for node in nodes(path, ast.Import) for alias in node.names]
    imported += [alias for node in nodes(path, ast.ImportFrom) for alias in node.names]
    bound = {alias.asname or alias.name.partition(".")[0] for alias in imported}
    found = {alias.name for alias in imported if (alias.asname or alias.name) in loaded}
    for node in nodes(path, ast.Attribute):
        if isinstance(node.value, ast.Name) and node.value.id in bound:
            found.add(node.attr)
    if "getattr(" in text_of(path):
        found |= {node.value for node in nodes(path, ast.Constant) if isinstance(node.value, str)}
    return found


def unused(paths: list[Path]) -> list[Definition]:
    used: Counter[str] = Counter()
    for path in paths:
        used.update(uses_of(path))
    elsewhere = set().union(*map(taken, paths))
    found = []
    for path in paths:
        local = uses(nodes(path, ast.Name), {})
        for one in definitions(path):
            if not one.within and one.name in elsewhere:
                continue
            count = (used if one.within else local)[one.name]
            if 0 < count < 10:  # (by itself, if at all)
                kinds = (ast.Name, ast.Attribute, ast.Constant) if one.within else ast.Name
                own = (node for node in ast.walk(one.node) if isinstance(node, kinds))
                count -= uses(own, aliases_of(path) if one.within else {})[one.name]
            if not count and not overrides(one):
                found.append(one)
    return found


def test_what_nothing_uses_is_not_there() -> None:
    words, points = shown(), entry_points()
    found = [
        str(one)
        for one in unused(list(sources((*PRODUCT, "pyspark_keytide"))))
        if one.name not in (words if named(one.path).startswith(OFFERED) else points)
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "def lonely(): return lonely()",
        "LONELY = (1, 2)",
        "LONELY: Final = 1",
        "LONELY = 1\n\nprint(one.LONELY, 'LONELY')",
        "async def lonely(): ...",
        "Lonely = tuple[int, str]",
        "class Lonely: ...",
        "class Used:\n    @property\n    def lonely(self): return 1\n\nUsed()",
        "class Used:\n    def lonely(self): self.lonely()\n\nUsed()",
        "def lonely(): ...\n\n__all__ = ['lonely']",
        "from other import lonely as lonely\n\ndef lonely(): ...",
    ],
)
def test_what_is_unused_is_seen(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module.py").write_text(code)
    monkeypatch.setattr("tests.unit.test_unused.overrides", lambda _: False)
    assert [one.name.lower() for one in unused([tmp_path / "module.py"])] == ["lonely"]


@pytest.mark.parametrize(
    "code",
    [
        "def used(): ...\n\nused()",
        "def used(): ...\n\ngetattr(1, 'used')",
        "from other import used as one\n\none()\n\ndef used(): ...",
        "@app.get('/')\ndef route(): ...",
        "class Used:\n    def __len__(self): return 1\n\nUsed()",
        "class Used:\n    def step(self): ...\n\nUsed().step()",
    ],
)
def test_what_is_used_is_left_alone(code: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(code)
    assert unused([tmp_path / "module.py"]) == []
