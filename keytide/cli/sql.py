"""`keytide sql`: statements and queries, one from the command line or many from a prompt.

CREATE, ALTER, DROP and BUILD INDEX go to the coordinator; SELECT and EXPLAIN to an indexer node. All queries
of a prompt share a session: none sees an older snapshot than the one before it.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.markup import escape

from keytide.cli.admin import coordinator
from keytide.cli.nodes import reader
from keytide.cli.options import DEFAULT_DATA_DIR, AtLeastOption, DataDir, JsonOption, Tip, Url, check_alone
from keytide.cli.output import details, err, friendly_errors, out, print_json, table
from keytide.client import Client
from keytide.errors import CallerError

DEFAULT_ROWS: Final = 1_000
"""Rows of a table, unless asked otherwise."""
HISTORY_LINES: Final = 1_000
"""Lines that a prompt's history keeps."""
QUERIES: Final = ("SELECT", "EXPLAIN")
"""What indexer nodes answer."""
_FIRST_WORD: Final = re.compile(r"(?>(?:\s|--[^\n]*+(?:\n|\Z)|/\*(?>(?:[^*]|\*(?!/))*)\*/|;)*)([A-Za-z]*+)")


def sql(
    statement: Annotated[str | None, typer.Argument(help="a statement; without it, a prompt")] = None,
    wait: Annotated[bool, typer.Option(help="wait for a build that the statement starts")] = True,
    rows: Annotated[
        int | None,
        typer.Option(min=0, help=f"rows of a SELECT at most ({DEFAULT_ROWS} in a table, all in JSON)"),
    ] = None,
    tip: Tip = False,
    at_least: AtLeastOption = None,
    node: Annotated[str | None, typer.Option(help="scan endpoint for queries; any, without it")] = None,
    url: Url = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: JsonOption = False,
) -> None:
    """Run SELECT, EXPLAIN SELECT, CREATE INDEX, ALTER INDEX, DROP INDEX or BUILD INDEX."""
    moment: dict[str, Any] = {"consistency": "tip"} if tip else {}
    if at_least is not None:
        try:
            moment["at_least"] = json.loads(at_least)
        except ValueError as error:
            raise typer.BadParameter(f"no JSON: {error}", param_hint="--at-least") from error
    runner = _Runner(url, data_dir, node, moment, rows, wait, as_json)
    try:
        if statement is not None:
            with friendly_errors(as_json):
                _check_of_query(first_word(statement), rows is not None, tip, at_least is not None)
            runner.run(statement)
        elif at_terminal():
            _prompt(runner.run)
        else:
            _pipe(runner.run, sys.stdin.buffer.read())
    finally:
        runner.close()


def at_terminal() -> bool:
    """Whether a person types, to whom mistakes are told one by one; in a pipe the first one ends it."""
    return sys.stdin.isatty()


def first_word(text: str) -> str:
    """The word that a statement begins with, in capitals; spaces and comments may stand before it."""
    found = _FIRST_WORD.match(text)
    return found[1].upper() if found else ""


def _check_of_query(word: str, rows: bool, tip: bool, at_least: bool) -> None:
    """Raise `CallerError` if options of queries are given for a statement (with this first word) to which
    they say nothing. (In a script they are for the queries among others.)"""
    if word not in QUERIES:
        what = "a statement other than SELECT and EXPLAIN"
        check_alone(what, "leave it out: it is of queries", tip=tip, at_least=at_least, rows=rows)
    if word == "EXPLAIN":
        check_alone(word, "leave it out: a plan has no rows", rows=rows)


class _Runner:
    """Runs statements, one after the other, in one session.

    Args:
        moment: from which moment queries are to be answered.
        rows: how many rows of a query are shown at most; None for the default.
        wait: whether to wait for builds.
    """

    def __init__(
        self,
        url: str | None,
        data_dir: Path,
        node: str | None,
        moment: dict[str, Any],
        rows: int | None,
        wait: bool,
        as_json: bool,
    ) -> None:
        self._url = url
        self._data_dir = data_dir
        self._node = node
        self._moment = moment
        self._rows = rows
        self._wait = wait
        self._as_json = as_json
        self._client: Client | None = None

    def run(self, text: str) -> None:
        """Run a statement, and print what comes of it.

        Raises:
            typer.Exit: it failed, which was printed.
        """
        with friendly_errors(self._as_json):
            if first_word(text) in QUERIES:
                self._query(text)
            else:
                self._statement(text)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _statement(self, text: str) -> None:
        with coordinator(self._url, self._data_dir) as admin:
            answer = admin.call("POST", "/v1/statements", {"statement": text})
            notice = answer.get("notice") if self._as_json else answer.pop("notice", None)
            if notice and not self._as_json:
                err.print(f"notice: {escape(notice)}", style="yellow")
            build = answer.get("build")
            if self._wait and build:
                name = str(build["id"] if isinstance(build, dict) else build)
                answer["build_state"] = admin.wait_for_build(name, quiet=self._as_json)["state"]
        if self._as_json:
            print_json(answer)
        else:
            details("", answer)

    def _query(self, text: str) -> None:
        client = self._reader()
        if first_word(text) == "EXPLAIN":
            plan = client.explain(text, **self._moment)
            if self._as_json:
                print_json(plan)
            else:
                show_plan(plan)
            return
        query = client.query(text, **self._moment)
        columns = query.columns
        if self._as_json:
            rows = list(itertools.islice(query, self._rows))
            print_json(
                {
                    "columns": columns,
                    "rows": rows,
                    "index": query.index,
                    "snapshot": query.snapshot,
                    "session": query.session,
                    "staleness_ms": query.staleness_ms,
                }
            )
            return
        most = DEFAULT_ROWS if self._rows is None else self._rows
        rows = list(itertools.islice(query, most + 1))
        at = "the tip" if query.snapshot is None else f"snapshot {query.snapshot}"
        table("", columns, [[_shown(value) for value in row] for row in rows[:most]], exact=True)
        count = f"{min(len(rows), most):,} row{'' if len(rows) == 1 else 's'}"
        out.print(f"{count} from {query.index} at {at}", style="dim", highlight=False, markup=False)
        if len(rows) > most:
            out.print("there are more rows: raise --rows, or add a LIMIT", style="dim")

    def _reader(self) -> Client:
        """A client of some node, the same one from query to query."""
        if self._client is None:
            self._client = reader(self._node, self._url, self._data_dir)
        return self._client


def _shown(value: Any) -> object:
    """A value in a table: numbers as they are, so that they stand to the right."""
    if isinstance(value, bool) or value is None or isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return value


def _partitions(plan: dict[str, Any]) -> dict[str, str]:
    """Which partitions are asked, where some are of several slices."""
    asked, whole = plan["partitions_asked"], plan["partitions_of_index"]
    if whole == plan["slices_of_index"]:
        return {}
    return {"partitions": f"{len(asked)} of {whole}: {', '.join(map(str, asked))}"}


def show_plan(plan: dict[str, Any]) -> None:
    """A plan as people read it."""
    asked, whole = plan["slices_asked"], plan["slices_of_index"]
    estimate = plan["estimate"]
    known = "an unknown number" if estimate["assumed"] else f"{estimate['entries_of_index']:,}"
    lines: dict[str, Any] = {
        "index": plan["index"] + (" (backwards)" if plan["reverse"] else ""),
        **{name: plan[name] for name in ("structure",) if name in plan},
        "spans": "\n".join(plan["spans"]) or "none: nothing can satisfy the condition",
        "slices": f"{len(asked)} of {whole}"
        + (f": {', '.join(map(str, asked))}" if len(asked) < whole else ""),
        **_partitions(plan),
        "pushed down": ", ".join(plan["pushed_down"]) or "nothing",
    }
    if plan["residual"]:
        lines["filter"] = plan["residual"]
    if plan["group_by"]:
        lines["group by"] = ", ".join(plan["group_by"])
    if plan["aggregates"]:
        lines["aggregates"] = ", ".join(plan["aggregates"])
    if plan["sorted_by"]:
        lines["sorted by"] = f"{', '.join(plan['sorted_by'])} (by the node that answers)"
    if plan["limit"] is not None or plan["offset"]:
        limit = "" if plan["limit"] is None else f"LIMIT {plan['limit']} "
        lines["rows"] = f"{limit}OFFSET {plan['offset']}" if plan["offset"] else limit.strip()
    lines["estimate"] = f"{estimate['entries_read']:,} entries of {known}"
    details("", lines)
    others = plan["other_indexes"]
    if others:
        table("Other indexes", ("index", "why not"), [[name, others[name]] for name in sorted(others)])


def _pipe(run: Callable[[str], None], script: bytes) -> None:
    """Run the statements of a script, each ended by a semicolon at the end of a line (the last one need not
    be), up to the first that fails.

    Raises:
        typer.Exit: with status 1, one failed, which was printed.
    """
    with friendly_errors():
        try:
            text = script.decode()
        except UnicodeDecodeError as error:
            raise CallerError(f"the statements are not UTF-8: {error}") from error
    for statement in re.split(r";[ \t]*+(?:\n|$)", text):
        if statement.strip():
            run(statement.strip())


def _prompt(run: Callable[[str], None]) -> None:
    """Read statements that end in a semicolon; history in ~/.keytide_history. Ctrl-C gives up what is being
    written, or run."""
    history = Path.home() / ".keytide_history"
    try:
        import readline

        readline.set_history_length(HISTORY_LINES)
        if history.exists():
            readline.read_history_file(history)
    except (ImportError, OSError):
        readline = None  # type: ignore[assignment]
    out.print("Statements end with a semicolon; Ctrl-D ends.")
    pending: list[str] = []
    try:
        while True:
            try:
                pending.append(input("keytide> " if not pending else "     ...> "))
            except EOFError:
                break
            except KeyboardInterrupt:
                pending.clear()
                out.print()
                continue
            text = "\n".join(pending).strip()
            if not text.rstrip(";").strip():
                pending.clear()
            elif text.endswith(";"):
                pending.clear()
                try:
                    run(text.rstrip(";"))
                except typer.Exit:
                    pass
    finally:
        if readline is not None:
            try:
                readline.write_history_file(history)
            except OSError:
                pass  # a home that cannot be written to: the prompt works without history
    out.print()
