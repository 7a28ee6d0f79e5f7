"""Options that several commands take, and those of all: how long the command waits for an answer before it
gives up is `keytide --give-up`, else `KEYTIDE_GIVE_UP_S`, else ten seconds. Commands that wait for something
to be over (`--wait`, `--follow`) go on for as long as they get answers."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from keytide.errors import CallerError

JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]
Url = Annotated[
    str | None,
    typer.Option(
        "--url", help="coordinator, e.g. http://127.0.0.1:8091; several with commas [env: KEYTIDE_URL]"
    ),
]
Tip = Annotated[bool, typer.Option("--tip", help="newest state of each slice instead of one snapshot")]
AtLeastOption = Annotated[
    str | None,
    typer.Option(metavar="JSON", help='what the snapshot must include: {"<partition>": next_offset}'),
]
DATA_DIR_VARIABLE: Final = "KEYTIDE_DATA_DIR"
DataDir = Annotated[
    Path, typer.Option("--data-dir", envvar=DATA_DIR_VARIABLE, help="data folder of `keytide up`")
]
DEFAULT_DATA_DIR: Final = Path("keytide-data")


def check_alone(what: str, next_step: str, **beside: object) -> None:
    """Raise `CallerError` if options are given that mean nothing beside something else.

    Args:
        what: that is.
        beside: what was given for each of the options, by its name.
    """
    given = [f"--{name.replace('_', '-')}" for name, value in beside.items() if value]
    if given:
        raise CallerError(f"{what} takes no {' and no '.join(given)}", next_step=next_step)


def json_file(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        CallerError: it holds something else.
    """
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise CallerError(
            f"{path} is not JSON: {error}", next_step="write one JSON object into it"
        ) from error
    if not isinstance(document, dict):
        raise CallerError(f"{path} holds no JSON object", next_step="write one JSON object into it")
    return document


# --- of all commands ------------------------------------------------------------------------------------

DEFAULT_GIVE_UP_S: Final = 10.0
"""Twice what a node waits by default for a snapshot that is new enough."""
_give_up_s = DEFAULT_GIVE_UP_S

GIVE_UP_LATER: Final = "`keytide --give-up SECONDS` (or KEYTIDE_GIVE_UP_S) waits longer"


def give_up_s() -> float:
    """Seconds until a command that waits for an answer gives up."""
    return _give_up_s


def look_s() -> float:
    """Seconds for a question to which somebody else may know the answer."""
    return _give_up_s / 2


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"keytide {version('keytide')}")
        raise typer.Exit


def set_give_up_s(
    give_up: Annotated[
        float,
        typer.Option(
            "--give-up",
            envvar="KEYTIDE_GIVE_UP_S",
            metavar="SECONDS",
            min=0.1,
            help="how long a command waits for an answer",
        ),
    ] = DEFAULT_GIVE_UP_S,
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="print the release, and end"),
    ] = False,
) -> None:
    """Options of all commands; they stand before the command."""
    global _give_up_s
    _give_up_s = give_up
