"""Commands that ask the coordinator: what is the same for all of them, and how their answers are shown."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import typer

from keytide.cli.admin import coordinator
from keytide.cli.options import DEFAULT_DATA_DIR, DataDir, JsonOption, Url
from keytide.cli.output import details, friendly_errors, print_json, table
from keytide.cli.rendering import cells

Command = Callable[..., Any]
Show = Callable[..., None]
"""Prints an answer for people: takes it, and the command's own arguments by name."""

_LAST: Final = [
    inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=kind)
    for name, default, kind in (
        ("url", None, Url),
        ("data_dir", DEFAULT_DATA_DIR, DataDir),
        ("as_json", False, JsonOption),
    )
]


_GIVEN: Final = ("admin", "as_json", "data_dir")
"""Arguments that a function gets if it has them, and that are none of its own."""


def asks(app: typer.Typer, name: str | None = None, show: Show | None = None) -> Callable[[Command], Command]:
    """Make a command of a function that takes the coordinator (`admin`) and its own arguments. To these come
    `--url`, `--data-dir` and `--json` (of which it gets `data_dir` and `as_json`, if it has those arguments).

    Args:
        name: the function's unless given.
        show: prints what the function gives, which is printed as JSON with `--json`. Not needed for one that
            gives None and prints for itself.
    """

    def register(function: Command) -> Command:
        signature = inspect.signature(function, eval_str=True)
        own = [one for one in signature.parameters.values() if one.name not in _GIVEN]

        @functools.wraps(function)
        def command(url: str | None, data_dir: Path, as_json: bool, **given: Any) -> None:
            also = {"as_json": as_json, "data_dir": data_dir}
            told = {name: value for name, value in also.items() if name in signature.parameters}
            with friendly_errors(as_json), coordinator(url, data_dir) as admin:
                answer = function(admin, **given, **told)
                if answer is not None and (as_json or show is None):
                    print_json(answer)
                elif answer is not None and show is not None:
                    show(answer, **given)

        made: Any = command
        made.__signature__ = inspect.Signature([*own, *_LAST])
        made.__annotations__ = {one.name: one.annotation for one in [*own, *_LAST]}
        app.command(name)(command)
        return function

    return register


def listed(title: str, columns: Sequence[str]) -> Show:
    """Prints rows as a table."""
    return lambda rows, **_: table(title, columns, [cells(row, columns) for row in rows])


def titled(title: str) -> Show:
    """Prints one thing's members; the title may name the command's arguments in braces."""
    return lambda document, **given: details(title.format(**given), document)
