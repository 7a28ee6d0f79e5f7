"""Which pages there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.reference import commands, errors, metrics, rest, settings, sql

FOLDER: Final = Path(__file__).parents[2] / "docs" / "reference"
PAGES: Final[dict[str, Callable[[], str]]] = {
    "commands": commands.page,
    "errors": errors.page,
    "metrics": metrics.page,
    "rest": rest.page,
    "settings": settings.page,
    "sql": sql.page,
}
"""Name of the file, without `.md`, and what makes its text."""
