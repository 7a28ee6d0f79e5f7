"""Names of modules, public classes and functions are held against docs/glossary.md: none is a word that was
retired, each term stands there once, and the types that it speaks of are among its terms."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.unit.test_style import PRODUCT, ROOT, named, sources, tree

PAGE = (ROOT / "docs/glossary.md").read_text()
NOT_USED = "## Not used"
TYPES = ("keytide/catalog/records.py", "keytide/catalog/copies.py", "keytide/model/timestamp.py")
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def rows(text: str) -> Iterator[str]:
    """The first cells of the rows of all tables."""
    for line in text.splitlines():
        cell = line.partition("|")[2].partition("|")[0].strip()
        if cell and cell not in ("word", "not used", "---"):
            yield cell


def terms() -> list[str]:
    return [term for cell in rows(PAGE.partition(NOT_USED)[0]) for term in cell.split(", ")]


def retired() -> dict[str, bool]:
    """Words that are not used -> whether only as a name by themselves."""
    return {
        word.removesuffix(" (alone)"): word.endswith(" (alone)")
        for cell in rows(PAGE.partition(NOT_USED)[2])
        for word in cell.split(", ")
    }


def words(name: str) -> list[str]:
    """The words of a module's or a class's name."""
    return [word.lower() for word in WORD.findall(name)]


def breaks(name: str, word: str, alone: bool) -> bool:
    """Whether a name has a word, or its plural; `alone`: whether it has no other."""
    has = {one for one in words(name) if one in (word, f"{word}s")}
    return bool(has) and (not alone or len(words(name)) == 1)


def names() -> Iterator[tuple[str, str]]:
    """(module, name) of all modules and packages of the product, and of their public classes."""
    for path in sources(PRODUCT):
        parts = named(path).removesuffix(".py").split("/")
        yield named(path), parts[-2] if parts[-1] == "__init__" else parts[-1]
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield named(path), node.name


def functions() -> Iterator[tuple[str, str]]:
    """(module, name) of the public functions of the product's modules and public classes."""
    for path in sources(PRODUCT):
        top = tree(path).body
        classes = [node for node in top if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
        for node in [*top, *(member for one in classes for member in one.body)]:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                yield named(path), node.name


def test_each_term_stands_there_once() -> None:
    counts = Counter(terms())
    assert len(counts) > 40
    assert [term for term, count in counts.items() if count > 1] == []
    assert set(retired()).isdisjoint(counts)


def test_no_name_of_a_module_or_class_has_a_retired_word() -> None:
    assert len(retired()) > 20
    found = [
        (module, name)
        for module, name in names()
        for word, alone in retired().items()
        if breaks(name, word, alone)
    ]
    assert found == [], "docs/glossary.md says what is said instead"


def test_no_function_is_called_by_a_retired_word_alone() -> None:
    assert len(list(functions())) > 2_000
    found = [(module, name) for module, name in functions() for word in retired() if breaks(name, word, True)]
    assert found == [], "docs/glossary.md says what is said instead"


def test_types_of_the_vocabulary_are_terms() -> None:
    """Every public type of the modules that the page names, by its words."""
    known = {word for term in terms() for word in words(term)}
    defined = [
        node.name
        for module in TYPES
        for node in tree(ROOT / module).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert len(defined) > 5
    assert [name for name in defined if not known.intersection(words(name))] == []


@pytest.mark.parametrize(
    ("name", "word", "alone", "broken"),
    [
        ("Lanes", "lane", False, True),
        ("work_lane", "lane", False, True),
        ("Planes", "lane", False, False),
        ("IndexShown", "shown", False, True),
        ("HeldSnapshot", "held", True, False),
        ("Held", "held", True, True),
        ("held", "held", True, True),
    ],
)
def test_a_retired_word_is_seen(name: str, word: str, alone: bool, broken: bool) -> None:
    assert breaks(name, word, alone) is broken
