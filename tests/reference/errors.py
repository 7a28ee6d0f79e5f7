"""Every problem type, from the classes that bear it and the calls that name it."""

from __future__ import annotations

import ast
from functools import cache
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request

from keytide.serving import problems as http_problems
from tests.reference.writing import document, table
from tests.unit.test_style import PRODUCT, named, nodes, sources, tree

INTRODUCTION = """Every error of the servers, the clients and the command has a `type`, a short word that
programs may match on; over HTTP it is a problem document of RFC 9457: `type, title, status, detail`, mostly
`next_step`, and members of its own. In Python it is the `problem_type` of a `KeytideError`
(`RetryableError`: the same call may go through later; `CallerError`: it never will). `…` stands for what
the message fills in."""
FRAMEWORK = {
    404: "There is no such route.",
    405: "The route does not take the method.",
}
"""What no class of ours stands for: status -> what it means."""
MOST_MAKERS = 8
"""Modules that are named; of an error that more than these raise, its class's is."""


class Family(NamedTuple):
    bases: tuple[str, ...]
    kind: str
    status: int
    text: str


class Error(NamedTuple):
    kind: str
    status: int
    text: str
    where: str


def families() -> dict[str, tuple[Family, str]]:
    """Classes of errors by name: what each says itself, and the module that has it."""
    found = {}
    for path in sources(PRODUCT):
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef):
                bases = tuple(base.id for base in node.bases if isinstance(base, ast.Name))
                said = {
                    target.id: statement.value.value
                    for statement in node.body
                    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
                    for target in statement.targets
                    if isinstance(target, ast.Name)
                }
                text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
                kind, status = str(said.get("problem_type", "")), int(str(said.get("status", 0)))
                found[node.name] = Family(bases, kind, status, text), named(path)
    return found


def _status(name: str, known: dict[str, tuple[Family, str]]) -> int:
    """The HTTP status of a class, or of the first of its bases that says one; 0 when none is an error."""
    if name not in known:
        return 0
    family = known[name][0]
    return family.status or next((found for base in family.bases if (found := _status(base, known))), 0)


@cache
def errors() -> list[Error]:
    """All of them, by type; a type that several places raise comes once for each text."""
    known = families()
    made = _makers()
    found = {
        Error(family.kind, _status(name, known), family.text, _shown(made.get(name, {where}), where))
        for name, (family, where) in known.items()
        if family.kind and _status(name, known)
    }
    for path in sources(PRODUCT):
        for node in nodes(path, ast.Call):
            if isinstance(node.func, ast.Name):
                found |= {Error(*said, named(path) + "`") for said in _called(node, known)}
    return sorted(found | {_of_framework(status) for status in FRAMEWORK})


def _makers() -> dict[str, set[str]]:
    """Classes by name: the modules that make one. (Where a type is named in the call, that has a row of its
    own.)"""
    found: dict[str, set[str]] = {}
    for path in sources(PRODUCT):
        for node in nodes(path, ast.Call):
            if isinstance(node.func, ast.Name) and all(word.arg != "problem_type" for word in node.keywords):
                found.setdefault(node.func.id, set()).add(named(path))
    return found


def _shown(makers: set[str], where: str) -> str:
    if len(makers) > MOST_MAKERS:
        return f"{where}`, by {len(makers)} modules"
    return "`, `".join(sorted(makers)) + "`"


def _of_framework(status: int) -> Error:
    """What the framework refuses, as the servers name it."""
    request = Request({"type": "http", "method": "GET", "path": "/", "headers": []})
    kind = http_problems.plain(request, HTTPException(status), "")["type"]
    return Error(kind, status, FRAMEWORK[status], "keytide/serving/problems.py`")


def _called(node: ast.Call, known: dict[str, tuple[Family, str]]) -> list[tuple[str, int, str]]:
    words = {word.arg: word.value for word in node.keywords}
    kind, status = words.get("problem_type"), words.get("status")
    assert isinstance(node.func, ast.Name)
    own = _status(node.func.id, known)
    if not own or not node.args:
        return []
    said = int(str(status.value)) if isinstance(status, ast.Constant) else own
    if isinstance(kind, ast.Constant):
        return [(str(kind.value), said, _text(node.args[0]))]
    inherited = known[node.func.id][0].kind if said != own and kind is None else ""
    return [(inherited, said, _text(node.args[0]))] if inherited else []


def _text(node: ast.expr) -> str:
    """A message as it stands in the code, `…` for what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return "…"


def page() -> str:
    """docs/reference/errors.md."""
    rows = [(f"`{one.kind}`", str(one.status), one.text, f"`{one.where}") for one in errors()]
    return document("Errors", INTRODUCTION, table(("type", "status", "what it says", "raised in"), rows))
