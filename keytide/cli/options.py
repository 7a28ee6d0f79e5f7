"""Options that several commands take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from keytide.errors import CallerError

Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Url = Annotated[
    str | None, typer.Option("--url", help="coordinator, e.g. http://127.0.0.1:8091 [env: KEYTIDE_URL]")
]
Tip = Annotated[bool, typer.Option("--tip", help="newest state of each slice instead of one snapshot")]
AtLeast = Annotated[
    str | None,
    typer.Option(metavar="JSON", help='what the snapshot must include: {"<partition>": next_offset}'),
]
DATA_DIR_VARIABLE: Final = "KEYTIDE_DATA_DIR"
DataDir = Annotated[
    Path, typer.Option("--data-dir", envvar=DATA_DIR_VARIABLE, help="data folder of `keytide up`")
]
DEFAULT_DATA_DIR: Final = Path("keytide-data")


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
