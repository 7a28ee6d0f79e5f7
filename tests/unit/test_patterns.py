"""Regular expressions take time in proportion to the text, whatever the text is.

What comes from outside (documents, requests, statements) is matched on event loops and in projectors. There
a repeat without an end that gives back what it took (`+`, `*`, `*?`) lets a hostile text stand
for hours: those here are possessive (`++`, `*+`), or, where more than one character is repeated, all that an
atomic group holds (`(?>(?:ab|c)*)`): Python before 3.11.5 loses what a possessive repeat of a group has
matched (CPython's issue 106052).
"""

from __future__ import annotations

import ast
import importlib
import random
import re
from collections.abc import Iterator
from typing import Any, cast

import pytest

from indexer.scan.aggregate.request import plan_of
from keytide.definition.binding import Binding
from keytide.definition.errors import InvalidStatementError
from keytide.definition.semantics import cast_bigint, cast_double
from keytide.definition.statement import unfinished
from keytide.errors import CallerError
from keytide.http.loose_json import json_or_text
from keytide.model.hints import nearest
from tests.unit.test_style import named, nodes, sources

SERVING = ("keytide", "projector", "router", "indexer", "coordinator")
_parser: Any = importlib.import_module("re._parser")
_constants: Any = importlib.import_module("re._constants")
LONG = 1_000
"""A repeat with fewer turns than that costs little."""


def written() -> Iterator[tuple[str, str | bytes, int]]:
    """(where, pattern, flags) of every pattern that these write; what is put in counts as one letter."""
    for path in sources(SERVING):
        for node in nodes(path, ast.Call):
            if not (isinstance(node.func, ast.Attribute) and node.args):
                continue
            if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "re"):
                continue
            pattern = _text(node.args[0])
            if node.func.attr == "escape" or pattern is None:
                continue
            verbose = "VERBOSE" in ast.dump(node)
            yield f"{named(path)}:{node.lineno}", pattern, re.VERBOSE if verbose else 0


def made() -> Iterator[tuple[str, str | bytes, int]]:
    """As `written`, of all patterns that a module has ready, whatever they are put together from."""
    for path in sources(SERVING):
        if "re.compile(" in path.read_text():
            module = importlib.import_module(named(path).removesuffix(".py").replace("/", "."))
            for name, value in vars(module).items():
                if isinstance(value, re.Pattern):
                    yield f"{named(path)}: {name}", value.pattern, value.flags & re.VERBOSE


def _text(node: ast.expr) -> str | bytes | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(one.value) if isinstance(one, ast.Constant) else "x" for one in node.values)
    return None


def gives_back(parsed: Any) -> bool:
    """Whether a parsed pattern has a repeat without an end that is neither possessive nor an atomic group's
    only part, or a possessive one of a group."""
    for operation, argument in parsed:
        if operation is _constants.POSSESSIVE_REPEAT and not _is_one_character(argument[2]):
            return True
        if operation is _constants.ATOMIC_GROUP and len(argument) == 1:
            within, part = argument[0]
            argument = part[2] if within is _constants.MAX_REPEAT else argument
        if operation in (_constants.MAX_REPEAT, _constants.MIN_REPEAT) and argument[1] > LONG:
            return True
        if any(gives_back(one) for one in _parts(argument)):
            return True
    return False


def _is_one_character(parsed: Any) -> bool:
    return len(parsed) == 1 and parsed[0][0] in (
        *(_constants.LITERAL, _constants.NOT_LITERAL),
        *(_constants.IN, _constants.ANY),
    )


def _parts(argument: Any) -> Iterator[Any]:
    if isinstance(argument, _parser.SubPattern):
        yield argument
    elif isinstance(argument, tuple | list):
        for one in argument:
            yield from _parts(one)


@pytest.mark.parametrize(
    ("pattern", "backs"),
    [
        (r"a+b", True),
        (r"(?:a|b*)c", True),
        (r"(?:x.*?)?y", True),
        (r"a++(?:b*+)c", False),
        (r"(?:ab)*+c", True),
        (r"(?>(?:a|bc)*)d", False),
        (r"(?>(?:a|b*c)*)d", True),
        (r"(?>a*b)c", True),
        (r"(?>(?:a|b*+c)*)d", False),
        (r"a{1,9}", False),
    ],
)
def test_a_repeat_that_gives_back_is_seen(pattern: str, backs: bool) -> None:
    assert gives_back(_parser.parse(pattern)) == backs


def test_patterns_give_nothing_back() -> None:
    found = [*written(), *made()]
    assert len(found) > 30, "they are found"
    bad = [
        f"{where}: {pattern!r}"
        for where, pattern, flags in found
        if gives_back(_parser.parse(pattern, flags))
    ]
    assert not bad, "\n".join(["possessive repeats (`++`, `*+`) are wanted in:", *bad])


@pytest.mark.timeout(60)  # an hour, when they give back
@pytest.mark.parametrize(
    ("function", "text", "given"),
    [
        (cast_double, "1" * 300_000 + "x", None),
        (cast_double, "." + "1" * 300_000 + " x", None),
        (cast_bigint, " " * 300_000 + "1 x", None),
        (json_or_text, "1" * 300_000 + "x", "1" * 300_000 + "x"),
        (unfinished, "/" + "*" * 300_000, InvalidStatementError),
    ],
)
def test_a_long_text_is_read_once(function: Any, text: str, given: Any) -> None:
    result = function(text)
    assert isinstance(result, given) if isinstance(given, type) else result == given


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", ["sum(" + " " * 300_000 + "x", "sum(" + ") " * 300_000 + "x", "s" * 300_000])
def test_a_long_function_is_read_once(text: str) -> None:
    with pytest.raises(CallerError, match="is no function"):
        plan_of([text], [], cast(Binding, None))


@pytest.mark.timeout(60)
def test_long_names_are_not_compared() -> None:
    chance = random.Random(1)
    letters = "".join(chr(0x4E00 + chance.randrange(150)) for _ in range(150_000))
    assert nearest(letters, ["".join(chance.sample(letters, len(letters)))]) is None
    assert nearest("flihgts", ["flights", letters]) == "flights"
