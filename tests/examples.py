"""The fenced blocks of the README and of docs/, and what is held of each.

Every block says its language, and that says what is done with it:

    sh, python, sql   run, page by page in the order of `PAGES`, on one cluster (`integration/test_tour.py`)
    json, text        what a program shows: compared with what the block before it has really shown
    toml              loaded as settings

A block below a line `<!-- not run: why -->` is left alone. `unit/test_examples.py` holds that there is no
block of another kind, and that few are left alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from tests.unit.test_style import ROOT, named, tracked

PAGES: Final = (
    *("README.md", "docs/scan-consistently.md", "docs/clients.md", "docs/define-an-index.md"),
    *("docs/build.md", "docs/unique.md", "docs/scale.md", "docs/recover.md", "docs/initial-state.md"),
    *("docs/verify.md", "docs/repair.md", "docs/operate.md", "docs/validate.md", "docs/aggregate.md"),
    *("docs/query.md", "docs/stream.md", "docs/spark.md", "docs/spatial.md"),
)
"""Those with blocks that are run, in this order: a page goes on with what those before it have made."""
RUN: Final = ("sh", "python", "sql")
SHOWN: Final = ("json", "text")
_FENCE: Final = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\S*)\n(?P<text>.*?)^(?P=indent)``` *$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A fenced block.

    Attributes:
        line: of its fence, from 1.
        reason: why it is left alone; "" when it is not.
    """

    page: str
    line: int
    language: str
    text: str
    reason: str


def pages() -> list[Path]:
    """The README and what docs/ has, but for what is made from the code."""
    return [
        path
        for path in tracked()
        if named(path) == "README.md" or (named(path).startswith("docs/") and path.suffix == ".md")
    ]


def blocks(page: str) -> list[Block]:
    """The blocks of a page, which is named from the root of the repository."""
    return found(page, (ROOT / page).read_text())


def found(page: str, text: str) -> list[Block]:
    """The blocks of a text."""
    return [
        Block(
            page,
            text.count("\n", 0, one.start("indent")) + 1,
            one["language"],
            one["text"],
            one["reason"] or "",
        )
        for one in _FENCE.finditer(text)
    ]


def fits(example: object, answer: object) -> bool:
    """Whether an answer in JSON has all members that an example has, of the same types. The first of a list
    stands for all; null, and members that are named by data, for anything."""
    if example is None or answer is None:
        return True
    if isinstance(example, dict) and isinstance(answer, dict):
        return all(
            name in answer and (name in BY_DATA or fits(value, answer[name]))
            for name, value in example.items()
        )
    if isinstance(example, list) and isinstance(answer, list):
        return not example or any(fits(example[0], one) for one in answer)
    numbers = (int, float)
    return type(example) is type(answer) or (isinstance(example, numbers) and isinstance(answer, numbers))


BY_DATA: Final = frozenset({"timestamp", "reasons", "unknown"})
"""Members whose own members are partitions, or reasons that there may be."""


def foreign(example: str, shown: str) -> list[str]:
    """The words of an example that what was shown does not have."""
    words = re.compile(r"[A-Za-z_]{2,}")
    known = set(words.findall(shown))
    return [word for word in words.findall(example) if word not in known]
