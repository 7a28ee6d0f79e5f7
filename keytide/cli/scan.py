"""`keytide scan`: rows of an index for people, and whole indexes as files.

Without `--form` it shows one page as a table. `--form`, `--to` or `--all` give rows to programs: they are
streamed as they come, in constant memory, with a count on standard error. A file gets its name when it is
whole.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
import typer

from keytide.cli.nodes import reader
from keytide.cli.options import DEFAULT_DATA_DIR, AtLeastOption, DataDir, JsonOption, Tip, Url, check_alone
from keytide.cli.output import err, friendly_errors, out, print_json, rows_progress, table
from keytide.client import Client, Count, Page, Row, TypeChangedError
from keytide.errors import CallerError
from keytide.http.loose_json import BrokenJsonError, json_or_text

DEFAULT_LIMIT = 20
"""Rows of a table, unless asked otherwise."""


class OutputFormat(StrEnum):
    """How rows are written."""

    json = "json"
    ndjson = "ndjson"
    arrow = "arrow"


def scan(
    index: str,
    equals: Annotated[
        str | None, typer.Option(help='leading key parts: a value, or a JSON array like ["ORD", 3]')
    ] = None,
    low: Annotated[str | None, typer.Option(help="lower bound")] = None,
    high: Annotated[str | None, typer.Option(help="upper bound")] = None,
    inclusion: Annotated[str, typer.Option(help="both, low, high or neither")] = "both",
    prefix: Annotated[str | None, typer.Option(help="strings that begin so")] = None,
    spans: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help='several stretches: [{"equals": ["ORD"]}, {"low": ["S"], "high": ["T"]}]'
        ),
    ] = None,
    within: Annotated[
        str | None, typer.Option(metavar="PLACE", help="of a spatial index: west,south,east,north or GeoJSON")
    ] = None,
    contains: Annotated[str | None, typer.Option(metavar="PLACE", help="what contains a place")] = None,
    intersects: Annotated[str | None, typer.Option(metavar="PLACE", help="what meets a place")] = None,
    near: Annotated[
        str | None, typer.Option(metavar="PLACE", help="lon,lat or GeoJSON, with --metres, --nearest or both")
    ] = None,
    metres: Annotated[float | None, typer.Option(min=0, help="how far from --near at most")] = None,
    nearest: Annotated[int | None, typer.Option(min=1, help="so many, the nearest to --near first")] = None,
    srid: Annotated[
        int | None,
        typer.Option(help="the system that the place is in: refused if that of the index is another one"),
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="descending")] = False,
    distinct: Annotated[bool, typer.Option("--distinct", help="one row per key")] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help=f"rows at most ({DEFAULT_LIMIT} in a table)")
    ] = None,
    offset: Annotated[int, typer.Option(min=0, help="rows to leave out at the start")] = 0,
    all_rows: Annotated[bool, typer.Option("--all", help="every row, as lines of JSON or in --form")] = False,
    form: Annotated[
        OutputFormat | None, typer.Option(help="json, ndjson or arrow instead of a table")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write rows there (ndjson, unless --form says)")
    ] = None,
    tip: Tip = False,
    at_least: AtLeastOption = None,
    max_staleness: Annotated[
        int | None, typer.Option(min=0, metavar="MS", help="how old the snapshot may be")
    ] = None,
    timeout: Annotated[
        int | None, typer.Option(min=1, metavar="MS", help="longest wait for such a snapshot")
    ] = None,
    validate: Annotated[
        bool, typer.Option("--validate", help="ask the primary, and leave out rows that are stale")
    ] = False,
    count: Annotated[bool, typer.Option("--count", help="only count what is selected")] = False,
    node: Annotated[str | None, typer.Option(help="scan endpoint of a node; any, without it")] = None,
    url: Url = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: JsonOption = False,
) -> None:
    """Rows of an index in key order, from one snapshot."""
    with friendly_errors(as_json):
        selection: dict[str, Any] = {
            "equals": _key("--equals", equals),
            "low": _key("--low", low),
            "high": _key("--high", high),
            "inclusion": inclusion if inclusion != "both" else None,
            "prefix": prefix,
            "spans": _json("--spans", spans, list),
            "within": _place("--within", within),
            "contains": _place("--contains", contains),
            "intersects": _place("--intersects", intersects),
            "near": _near(near, metres, nearest),
            "srid": srid,
            "distinct": distinct or None,
            "consistency": "tip" if tip else None,
            "at_least": _json("--at-least", at_least, dict),
            "max_staleness_ms": max_staleness,
            "timeout_ms": timeout,
        }
        if nearest is not None:
            check_alone(
                "--nearest",
                "leave that out: so many of the nearest are one answer, a table or --json; --metres alone "
                "gives all that is so near, as any rows",
                limit=limit,
                offset=offset,
                reverse=reverse,
                distinct=distinct,
                validate=validate,
                all=all_rows,
                form=form,
                to=to,
                count=count,
            )
        if count:
            check_alone(
                "--count",
                "leave that out: a count is of all that is selected",
                limit=limit,
                offset=offset,
                reverse=reverse,
                validate=validate,
                form=form,
                to=to,
            )
        if all_rows and limit is not None:
            raise CallerError("--all and --limit go against each other", next_step="give one of them")
        with reader(node, url, data_dir, timeout) as client:
            if count:
                _count(client, index, selection, as_json)
                return
            selection |= {"reverse": reverse or None, "offset": offset or None, "validate": validate or None}
            if all_rows or form is not None or to is not None:
                rows = limit if limit is not None or all_rows or to is not None else DEFAULT_LIMIT
                _write(
                    client,
                    index,
                    selection,
                    rows,
                    form or (OutputFormat.json if as_json else OutputFormat.ndjson),
                    to,
                )
            else:
                rows = limit or DEFAULT_LIMIT
                _show(client, index, selection if nearest else {**selection, "limit": rows}, as_json)


def _count(client: Client, index: str, selection: dict[str, Any], as_json: bool) -> None:
    counted = client.count(index, **selection)
    if as_json:
        print_json(_document(counted))
    else:
        out.print(f"{counted.count:,} entries at snapshot {counted.snapshot}")


def _show(client: Client, index: str, selection: dict[str, Any], as_json: bool) -> None:
    page = client.page(index, **selection)
    if as_json:
        print_json(_document(page))
        return
    rows, more = _all_asked_for(client, index, page, selection.get("limit") or len(page.rows))
    shown = [
        [json.dumps(row.key, ensure_ascii=False), row.id, json.dumps(row.include) if row.include else ""]
        + ([row.reason or "valid"] if row.validated is not None else [])
        + ([f"{row.distance:,.1f}"] if row.distance is not None else [])
        for row in rows
    ]
    measured = any(row.distance is not None for row in rows)
    columns = ["key", "id", "include", "distance" if measured else "validated"]
    columns = columns[: len(shown[0]) if shown else 3]
    table(f"{index} at snapshot {page.snapshot}", columns, shown)
    if page.validation is not None:
        out.print(f"{page.validation.get('stale', 0):,} stale rows are left out", style="dim")
    if more:
        out.print("there are more rows: raise --limit, or --all", style="dim")


def _all_asked_for(client: Client, index: str, page: Page, limit: int) -> tuple[list[Row], bool]:
    """So many rows, if there are, of a page and those behind it, for rows that are large come on several; and
    whether there are more. (Of validated rows some were left out, and are not made up for.)"""
    rows = list(page.rows)
    while page.page is not None and len(rows) < limit and page.validation is None:
        page = client.page(index, page=page.page)
        rows += page.rows
    return rows[:limit], page.page is not None or len(rows) > limit


def _document(answer: Count | Page) -> dict[str, Any]:
    """An answer as a node gives it: without what only some answers have, and this one has not."""
    document: dict[str, Any] = msgspec.to_builtins(answer)
    for name in ("explain", "validation"):
        if document.get(name) is None:
            document.pop(name, None)
    for row in document.get("rows", ()):
        for name in ("validated", "reason", "distance"):
            if row[name] is None:
                del row[name]
    return document


# --- rows for programs --------------------------------------------------------


def _write(
    client: Client,
    index: str,
    selection: dict[str, Any],
    limit: int | None,
    form: OutputFormat,
    to: Path | None,
) -> None:
    """All rows (at most `limit`) to a file or standard output."""
    if form is OutputFormat.arrow:
        if to is None and sys.stdout.isatty():
            raise CallerError("Arrow is not for a terminal", next_step="give a file with --to")
        _write_arrow(client, index, selection, limit, to)
        return
    scan = client.scan(index, limit=limit, **selection)
    with _sink(to) as sink:
        if form is OutputFormat.ndjson:
            for lines in _counted(scan.ndjson(), lambda lines: lines.count(b"\n")):
                sink.write(lines)
            return
        sink.write(b'{"rows": [')
        before = b"\n"
        for lines in _counted(scan.ndjson(), lambda lines: lines.count(b"\n")):
            sink.write(before + lines.rstrip(b"\n").replace(b"\n", b",\n"))
            before = b",\n"
        head = {"snapshot": scan.snapshot, "timestamp": scan.timestamp, "session": scan.session}
        sink.write(b'\n], "page": null, ' + json.dumps(head).encode().removeprefix(b"{") + b"\n")


def _write_arrow(
    client: Client, index: str, selection: dict[str, Any], limit: int | None, to: Path | None
) -> None:
    """Record batches to a file or standard output. A column of which a later value shows that it holds
    several types is written anew as JSON texts, if a file can be begun anew."""
    import pyarrow as pa

    types: dict[str, Any] = {}
    while True:
        scan = client.scan(index, limit=limit, **selection)
        try:
            with _sink(to) as sink, pa.ipc.new_stream(sink, scan.schema(types=types)) as writer:
                for batch in _counted(scan.batches(types=types), lambda batch: int(batch.num_rows)):
                    writer.write_batch(batch)
            return
        except TypeChangedError as error:
            column = error.extra.get("column")
            if to is None or not isinstance(column, str) or column in types:
                raise
            types[column] = "json"
            err.print(f"{column} holds several types: it is written as JSON", style="dim")


@contextmanager
def _sink(to: Path | None) -> Iterator[IO[bytes]]:
    """Where rows go.

    Raises:
        CallerError: the file cannot be written.
    """
    if to is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = to if to.exists() and not to.is_file() else to.with_name(to.name + ".part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(to)
    except OSError as error:
        raise CallerError(f"{to} cannot be written: {error.strerror or error}") from error
    finally:
        if part != to:
            part.unlink(missing_ok=True)


def _counted(parts: Iterable[Any], size: Any) -> Iterator[Any]:
    """The parts, with a count of their rows on standard error."""
    with rows_progress() as bar:
        task = bar.add_task("rows", total=None)
        for part in parts:
            bar.advance(task, size(part))
            yield part


# --- words of the command line -------------------------------------------------


def _key(option: str, text: str | None) -> list[Any] | None:
    """Key parts from the command line: a JSON array, or one value, which is text when it is not JSON.

    Raises:
        CallerError: it looks like JSON, and is none.
    """
    if text is None:
        return None
    try:
        value = json_or_text(text)
    except (BrokenJsonError, RecursionError) as error:
        raise CallerError(
            f"{option} looks like JSON, and is none: {text!r} ({error})",
            problem_type="broken-json",
            next_step="texts within JSON stand in double quotes, and the whole in single ones for the shell: "
            f"{option} '[\"ORD\", 3]'; if a text is meant: {option} {_quoted(text)}",
        ) from error
    return value if isinstance(value, list) else [value]


def _place(option: str, text: str | None) -> Any:
    """A place from the command line: a GeoJSON object, or numbers with commas between them.

    Raises:
        CallerError: it is neither.
    """
    if text is None:
        return None
    if text.lstrip().startswith("{"):
        return _json(option, text, dict)
    try:
        return [float(number) for number in text.strip().strip("[]").split(",")]
    except ValueError as error:
        raise CallerError(
            f"{option} is no place: {text!r}",
            next_step=f"write {option} -73.78,40.64 (lon,lat), west,south,east,north or a GeoJSON geometry",
        ) from error


def _near(place: str | None, metres: float | None, nearest: int | None) -> dict[str, Any] | None:
    """What lies around a place, as a request has it.

    Raises:
        CallerError: the options do not go together.
    """
    if place is None:
        if metres is not None or nearest is not None:
            raise CallerError(
                "--metres and --nearest go with --near", next_step="say near what: --near lon,lat"
            )
        return None
    if metres is None and nearest is None:
        raise CallerError(
            "--near takes --metres, --nearest, or both", next_step="say --nearest 5, for example"
        )
    said = {"point": _place("--near", place), "metres": metres, "limit": nearest}
    return {name: value for name, value in said.items() if value is not None}


def _quoted(text: str) -> str:
    """A text as JSON, for the shell."""
    return shlex.quote(json.dumps(text, ensure_ascii=False))


def _json(option: str, text: str | None, kind: type) -> Any:
    """The JSON of an option.

    Raises:
        CallerError: it is none, or of another kind.
    """
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CallerError(f"{option} is not JSON: {error}", next_step="see `keytide scan --help`") from error
    if not isinstance(value, kind):
        word = "an array" if kind is list else "an object"
        raise CallerError(f"{option} must be {word}", next_step="see `keytide scan --help`")
    return value
