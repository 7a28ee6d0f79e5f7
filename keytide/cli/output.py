"""How the command speaks: tables for people, JSON for programs, errors that say what to do next."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from keytide.cli.options import GIVE_UP_LATER
from keytide.errors import KeytideError

SIZES = frozenset({"bytes", "bytes_done", "bytes_total", "memory", "disk_free"})
"""Members that count bytes."""

_ANY_WIDTH = 100_000
"""Of a terminal in which every table has room."""
_LONGEST_WORD = 30
"""Beyond it a cell with spaces is a sentence: a moment with its offset is shorter."""

out = Console()
err = Console(stderr=True)


def print_json(document: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, exact: bool = False
) -> None:
    """A table; numbers to the right. Where that is wider than the terminal, a row is a block with a line for
    each column (as psql's `\\x auto`): no word and no number is broken, and nothing is left out.

    Args:
        exact: numbers are values of users, to be shown digit by digit, and no measures.
    """
    shown = [[str(value) if exact else _cell(value) for value in row] for row in rows]
    made = Table(title=title, title_justify="left", header_style="bold")
    for at, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[at], (int, float)) for row in rows)
        # Sentences go on in the next line, at a space; names, numbers and moments do not.
        text = any(" " in row[at] and len(row[at]) > _LONGEST_WORD for row in shown)
        words = [column, *(row[at] for row in shown)]
        if text:
            words = " ".join(words).split()
        made.add_column(
            escape(column),
            justify="right" if numeric else "left",
            no_wrap=not text,
            min_width=max(map(cell_len, words)),
        )
    for cells in shown:
        made.add_row(*map(escape, cells))
    if made.__rich_measure__(out, out.options.update(max_width=_ANY_WIDTH)).minimum <= out.width:
        out.print(made)
        return
    out.print(title if shown else f"{title}: none", style="italic", markup=False, highlight=False)
    for number, cells in enumerate(shown):
        if number:
            out.print()
        _lines(zip(columns, cells, strict=True))


def details(title: str, document: Mapping[str, Any]) -> None:
    """One thing's members, a line each, in units that people read."""
    found = ((name, readable(name, value)) for name, value in document.items())
    _lines(
        (
            (name, json.dumps(one, ensure_ascii=False) if isinstance(one, (dict, list)) else _cell(one))
            for name, one in found
        ),
        title,
    )


def _lines(members: Iterable[tuple[str, str]], title: str = "") -> None:
    """Names and what they stand for, a line each."""
    made = Table(title=title or None, title_justify="left", show_header=False, box=None)
    made.add_column(style="bold")
    made.add_column(overflow="fold")
    for name, text in members:
        made.add_row(escape(name), escape(text))
    out.print(made)


WITHOUT_ENTRIES: Final = frozenset({"left_out", "left_out_by_build"})
_REASONS: Final = {
    "leading-key-missing": "without the leading key",
    "nothing-to-unnest": "with nothing to unnest",
    "where-not-true": "for which the condition is not true",
}


def _left_out(counts: Mapping[str, Any]) -> str:
    """How many documents have no entries, and why: of one index, or of each."""
    if any(isinstance(one, dict) for one in counts.values()):
        return "; ".join(f"{index}: {_left_out(one)}" for index, one in counts.items() if one) or "none"
    words = [f"{count:,} documents {_REASONS.get(why, f'({why})')}" for why, count in counts.items()]
    return ", ".join(words) or "none"


def readable(name: str, value: Any) -> Any:
    """A member of the API's documents as people read it: sizes, moments, timestamps as partition:offset."""
    if name in WITHOUT_ENTRIES and isinstance(value, dict):
        return _left_out(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if name in SIZES:
            return size(value)
        if name.endswith("_at"):
            moment = datetime.fromtimestamp(value / 1000).astimezone()
            return moment.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, dict) and value and all(_is_place(place) for place in value.values()):
        return " ".join(f"{partition}:{place['offset']}" for partition, place in value.items())
    return value


def size(count: int) -> str:
    """Bytes in the largest unit that leaves a whole number before the point."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:,.1f} {unit}"


def _is_place(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == {"offset", "epoch"}


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
        if (error.problem_type, error.status) == ("node-unavailable", 504):  # it was silent for too long
            error.next_step = "; ".join(filter(None, (error.next_step, GIVE_UP_LATER)))
        if as_json:
            print_json(error.problem())
        else:
            err.print(f"[red]error:[/red] {escape(error.message)}", highlight=False)
            if error.next_step:
                err.print(f"[yellow]what to do:[/yellow] {escape(error.next_step)}", highlight=False)
        raise typer.Exit(1) from error
    except UnicodeEncodeError as error:  # what a shell gave that is no text: bytes that are not UTF-8
        shown = ascii(error.object)[:80]
        err.print(f"[red]error:[/red] {escape(shown)} is not UTF-8, and cannot be sent", highlight=False)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        raise typer.Exit(130) from None


def progress(quiet: bool = False, counts: bool = True) -> Progress:
    """A progress bar, on standard error; none when `quiet`.

    Args:
        counts: its steps are documents: with how many are done, and the time to go as far as the bar itself
            can tell.
    """
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        *([MofNCompleteColumn()] if counts else []),
        TextColumn("{task.fields[rate]}"),
        *([TimeRemainingColumn()] if counts else []),
        console=err,
        disable=quiet,
    )


def rows_progress() -> Progress:
    """A count of rows of which nobody knows how many there are, on standard error; none where no person
    looks."""
    return Progress(
        TextColumn("{task.completed:,.0f} {task.description}"),
        TimeElapsedColumn(),
        console=err,
        disable=not err.is_terminal,
        transient=True,
    )
