"""What people see of a cluster: keyspaces and their rollbacks, slices that need attention, events.

Each function prints one of the coordinator's documents (docs/reference); members that an older coordinator
does not have are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.markup import escape

from keytide.cli.output import details, out, readable, table
from keytide.model.health import HealthStatus, Verdict

JsonObject = Mapping[str, Any]

KEYSPACE_COLUMNS = ("snapshot", "staleness_ms", "lag_documents", "issuing", "rollbacks")
SLICE_COLUMNS = (
    "slice",
    "node",
    "live",
    "state",
    "entries",
    "bytes",
    "snapshot",
    "queue_documents",
    "queue_horizon",
    "undo_steps",
    "rebuild",
    "reason",
)
"""Of each copy of a slice."""
FILLING_COLUMNS = ("copy", "source", "percent", "eta_s")
"""Shown where some copy was, or is being, filled from another one."""
LOAD_COLUMNS = ("writes_per_s", "reads_per_s", "hot")
"""Shown where some slice gets much more than the others."""
LEAVING_COLUMNS = ("leases",)
"""Shown where some copy leaves: how many snapshots of it are read, or may be."""
HEALTH_WORDS: Final[dict[HealthStatus, str]] = {
    "ok": "[green]all is well[/green]",
    "degraded": "[yellow]degraded[/yellow], all answers come",
    "failing": "[red]failing[/red]",
}
HEALTH_STYLES: Final[dict[HealthStatus, str]] = {"ok": "dim", "degraded": "yellow", "failing": "red"}


def cells(document: JsonObject, columns: Iterable[str]) -> list[object]:
    """A row of a table."""
    values: list[object] = []
    for column in columns:
        value = document.get(column)
        values.append(", ".join(map(str, value)) if isinstance(value, list) else readable(column, value))
    return values


def show_health(verdict: Verdict) -> None:
    """The verdict, and for each reason what to do."""
    out.print(f"The cluster: {HEALTH_WORDS[verdict.status]}", highlight=False)
    for one in verdict.reasons:
        style = HEALTH_STYLES[one.status]
        mark = "note" if one.status == "ok" else one.status
        out.print(
            f"  [{style}]{mark}[/{style}] {escape(one.subject)}: {escape(one.reason)}\n"
            f"    what to do: {escape(one.next_step)}",
            highlight=False,
        )


def show_stability(document: JsonObject) -> None:
    """The stability timestamps of each keyspace, what was rolled back, and which slices are late."""
    keyspaces: dict[str, JsonObject] = document.get("keyspaces") or {}
    rows = [[name, *cells(one, KEYSPACE_COLUMNS)] for name, one in keyspaces.items()]
    table(f"Keyspaces (term {document.get('term')})", ("keyspace", *KEYSPACE_COLUMNS), rows)
    for name, one in keyspaces.items():
        if one.get("examining"):
            out.print(
                f"[yellow]{name}: its history is being examined: {escape(_words(one['examining']))}[/yellow]"
            )
        last = one.get("last_rollback")
        if last:
            at = readable("rolled_back_at", last.get("at"))
            text = escape(str(last.get("text") or f"{name} was rolled back"))
            out.print(f"[yellow]{text}[/yellow] ({at})", highlight=False)
        for late in one.get("lagging") or ():
            out.print(
                f"slice {late['slice']} of {late['index']} on node {late['node']} lags behind; "
                "snapshots do not wait for it"
            )


def show_troubles(topology: JsonObject) -> None:
    """Slices that are not in order: why, and the build that mends them. Nothing when all are."""
    rows = [
        [index["name"], *cells(one, ("slice", "node", "state", "rebuild", "reason"))]
        for index in topology.get("indexes") or ()
        for one in index["slices"]
        if one.get("reason") or one.get("rebuild") or one.get("state") == "LOST"
    ]
    if rows:
        table("Slices to look at", ("index", "slice", "node", "state", "rebuild", "reason"), rows)


def show_index(document: JsonObject) -> None:
    """One index: its members, and its slices."""
    slices: Sequence[JsonObject] = document.get("slice_states") or ()
    layouts: Sequence[JsonObject] = document.get("layouts") or ()
    apart = ("slice_states", "layouts", "hot")
    told = {name: value for name, value in document.items() if name not in apart}
    if isinstance(copies := told.get("copies"), dict):
        told["copies"] = ", ".join(f"{count:,} {kind}" for kind, count in copies.items())
    details(f"Index {document.get('name')}", told)
    if slices:
        _show_slices("Slices", slices)
    if layouts:
        columns = ("id", "replaced", "state", "slices", "build", "waits_for", "reason")
        table("Other layouts", columns, [cells(one, columns) for one in layouts])
    for hot in document.get("hot") or ():
        text = escape(f"slice {hot['slice']} is hot: {hot['reason']}")
        step = f"`keytide index load {escape(str(document.get('name')))}` says what helps"
        out.print(f"[yellow]{text}[/yellow]; {step}", highlight=False)
    lost = document.get("lost") or ()
    if lost:
        builds = ", ".join(document.get("rebuilds") or ()) or "a build that begins by itself"
        out.print(
            f"[yellow]slices {', '.join(map(str, lost))} are rebuilt by {builds}; scans that need no other "
            "slices than the rest are answered[/yellow]"
        )


def show_topology(document: JsonObject) -> None:
    """Which node holds which slice."""
    for index in document.get("indexes") or ():
        _show_slices(f"{index['name']} {index['state']}", index["slices"])


def _show_slices(title: str, slices: Sequence[JsonObject]) -> None:
    """A line for each copy of each slice."""
    filled = any(one.get(column) is not None for one in slices for column in FILLING_COLUMNS)
    leaves = any(one.get("state") == "LEAVING" for one in slices)
    hot = any(one.get("hot") for one in slices)
    more = (
        *(FILLING_COLUMNS if filled else ()),
        *(LEAVING_COLUMNS if leaves else ()),
        *(LOAD_COLUMNS if hot else ()),
    )
    columns = (*SLICE_COLUMNS[:-1], *more, SLICE_COLUMNS[-1])
    table(title, columns, [cells(one, columns) for one in slices])
    for why, numbers in _held_by_others(slices).items():
        which = "slices" if len(numbers) > 1 else "slice"
        text = f"what holds the queue of {which} {', '.join(map(str, numbers))}: {why}"
        out.print(escape(text), highlight=False)


def _held_by_others(slices: Sequence[JsonObject]) -> dict[str, list[int]]:
    """What holds queues and is none of the copies in the table by its `queue_horizon` -> slices."""
    shown = {(one["slice"], one.get("queue_horizon")) for one in slices}
    found: dict[str, list[int]] = {}
    for one in slices:
        why, offset = one.get("queue_held_by"), one.get("queue_held_from")
        if why and (offset is None or (one["slice"], offset) not in shown):
            numbers = found.setdefault(why, [])
            if one["slice"] not in numbers:
                numbers.append(one["slice"])
    return found


def show_event(line: JsonObject) -> None:
    """One line."""
    at = readable("happened_at", line.get("at"))
    style = {"error": "red", "warning": "yellow"}.get(str(line.get("level")), "default")
    text = escape(str(line.get("text")))
    out.print(f"{at} [{style}]{line.get('kind')}[/{style}] {text}", highlight=False)


def _words(value: Any) -> str:
    return "; ".join(map(str, value)) if isinstance(value, list) else str(value)
