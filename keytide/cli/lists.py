"""`keytide index skipped` and `violations`: the lists of an index, read page by page; `load`: what its slices
get."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.markup import escape

from keytide.cli.admin import Admin, rest
from keytide.cli.calls import asks
from keytide.cli.output import out, table
from keytide.cli.rendering import cells

_PAGE = 1_000
"""Lines asked for at once: the largest page."""

Limit = Annotated[int, typer.Option(min=1, help="so many at most")]


def add_to(app: typer.Typer) -> None:
    """Add the commands to `keytide index`."""
    asks(app, "skipped", _show_skipped)(index_skipped)
    asks(app, "violations", _show_violations)(index_violations)
    asks(app, "load", _show_load)(index_load)


def index_skipped(admin: Admin, name: str, limit: Limit = 100) -> Any:
    """Versions of documents that could not be indexed: where they are, and why."""
    return _read(admin, rest("indexes", name, "skipped"), "lines", limit)


def _show_skipped(document: dict[str, Any], name: str, **_: Any) -> None:
    lines, reasons = document["lines"], document["reasons"] or {}
    columns = ("partition", "offset", "id", "reason", "detail")
    table(f"Skipped by {name}", columns, [[line[one] for one in columns] for line in lines], exact=True)
    words = ", ".join(f"{reason} {count:,}" for reason, count in reasons.items())
    if not document["reasons_complete"]:
        words = f"{words} (of those that were counted)"
    out.print(escape(f"{document['skipped']:,} in all{f': {words}' if words else ''}"))
    _say_more(document)


def index_violations(admin: Admin, name: str, limit: Limit = 100) -> Any:
    """Keys of a UNIQUE index that several documents have, with all these documents."""
    return _read(admin, rest("indexes", name, "violations"), "keys", limit)


def _show_violations(document: dict[str, Any], name: str, **_: Any) -> None:
    if not document["unique"]:
        out.print(escape(f"index {name} is not UNIQUE"))
        return
    rows = [
        [
            "" if at else json.dumps(key["key"], ensure_ascii=False),
            one["id"],
            one["partition"],
            one["offset"],
            "" if at else key["since_snapshot"],
        ]
        for key in document["keys"]
        for at, one in enumerate(key["documents"])
    ]
    columns = ("key", "document", "partition", "offset", "since snapshot")
    table(f"Keys of {name} with several documents", columns, rows, exact=True)
    exact = "" if document.get("exact", True) else "at least "
    out.print(escape(f"{exact}{document['violations']:,} in all"))
    _say_more(document)


def index_load(
    admin: Admin,
    name: str,
    slice: Annotated[
        int | None, typer.Option(min=0, help="values of this slice, hot or not", show_default=False)
    ] = None,
) -> Any:
    """What is written to its slices and read from them, the values with most of it, and what helps a slice
    that is hotter than the others."""
    asked = {} if slice is None else {"slice": slice}
    return admin.call("GET", rest("indexes", name, "load"), **asked)


def _show_load(document: dict[str, Any], name: str, **_: Any) -> None:
    columns = ("slice", "writes_per_s", "reads_per_s", "entries")
    table(f"Slices of {name}", columns, [cells(one, columns) for one in document["slices"]])
    rows = [
        [
            one["slice"],
            json.dumps(one["value"], ensure_ascii=False),
            f"{one['percent']} to {one['percent_most']}",
        ]
        for one in document["values"]
    ]
    if rows:
        title = "Values with most of what is written to a slice, of the last minutes"
        table(title, ("slice", "value", "percent"), rows, exact=True)
    for number in document["without_values"]:
        out.print(f"slice {number}: its entries do not say by which value they came there")
    for one in document["hot"]:
        out.print(escape(f"slice {one['slice']} is hot: {one['reason']}"), style="yellow", highlight=False)
        out.print(escape(f"  {one['text']}"), highlight=False)
        if one["statement"]:
            out.print(escape(f"  {one['statement']}"), style="bold", highlight=False, soft_wrap=True)
    if not document["hot"]:
        out.print("no slice is hotter than the others")


def _read(admin: Admin, path: str, member: str, limit: int) -> dict[str, Any]:
    """Pages until there are `limit` lines, as one."""
    document: dict[str, Any] = admin.call("GET", path, limit=min(limit, _PAGE))
    while document["page"] and len(document[member]) < limit:
        most = min(limit - len(document[member]), _PAGE)
        more = admin.call("GET", path, limit=most, page=document["page"])
        document[member] += more[member]
        document["page"] = more["page"]
    return document


def _say_more(document: dict[str, Any]) -> None:
    if document["page"]:
        out.print("there are more: --limit shows them")
