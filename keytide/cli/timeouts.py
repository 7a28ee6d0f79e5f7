"""How long the command waits for an answer before it gives up: `keytide --give-up`, else `KEYTIDE_GIVE_UP_S`,
else ten seconds. Commands that wait for something to be over (`--wait`, `--follow`) go on for as long as they
get answers."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Final

import typer

DEFAULT_S: Final = 10.0
"""Twice what a node waits by default for a snapshot that is new enough."""
_limit_s = DEFAULT_S

WAIT_LONGER: Final = "`keytide --give-up SECONDS` (or KEYTIDE_GIVE_UP_S) waits longer"


def give_up_s() -> float:
    """Seconds."""
    return _limit_s


def look_s() -> float:
    """Seconds for a question to which somebody else may know the answer."""
    return _limit_s / 2


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"keytide {version('keytide')}")
        raise typer.Exit


def set_patience(
    give_up: Annotated[
        float,
        typer.Option(
            "--give-up",
            envvar="KEYTIDE_GIVE_UP_S",
            metavar="SECONDS",
            min=0.1,
            help="how long a command waits for an answer",
        ),
    ] = DEFAULT_S,
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="print the release, and end"),
    ] = False,
) -> None:
    """Options of all commands; they stand before the command."""
    global _limit_s
    _limit_s = give_up
