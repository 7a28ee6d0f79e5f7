"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Url = Annotated[
    str | None, typer.Option("--url", help="coordinator, e.g. http://127.0.0.1:8091 [env: KEYTIDE_URL]")
]
DataDir = Annotated[
    Path, typer.Option("--data-dir", envvar="KEYTIDE_DATA_DIR", help="data folder of `keytide up`")
]
DEFAULT_DATA_DIR: Final = Path("keytide-data")
