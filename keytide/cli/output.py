"""How the command speaks: tables for people, JSON for programs, errors that say what to do next."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from keytide.errors import KeytideError

out = Console()
err = Console(stderr=True)


def print_json(document: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table; numbers to the right."""
    made = Table(title=title, title_justify="left", header_style="bold")
    for at, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[at], (int, float)) for row in rows)
        made.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(*(_cell(value) for value in row))
    out.print(made)


def facts(title: str, document: Mapping[str, Any]) -> None:
    """One thing's members, a line each."""
    made = Table(title=title, title_justify="left", show_header=False, box=None)
    made.add_column(style="bold")
    made.add_column(overflow="fold")
    for name, value in document.items():
        made.add_row(
            name, json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else _cell(value)
        )
    out.print(made)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return str(value)


@contextmanager
def friendly_errors(as_json: bool = False) -> Iterator[None]:
    """Turn Keytide's errors into a message and exit status 1; Ctrl-C into 130."""
    try:
        yield
    except KeytideError as error:
        if as_json:
            print_json(error.problem())
        else:
            err.print(f"[red]error:[/red] {error.message}", highlight=False)
            if error.next_step:
                err.print(f"[yellow]what to do:[/yellow] {error.next_step}", highlight=False)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        raise typer.Exit(130) from None


def progress() -> Progress:
    """A progress bar for documents."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=err,
    )
