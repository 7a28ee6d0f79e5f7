"""Pieces of Markdown that the pages are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

NOTE: Final = "<!-- Made by `python -m tests.reference`; change the code, not this page. -->"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table; cells are texts of any form."""
    lines = [list(head), ["---"] * len(head), *(list(row) for row in rows)]
    return ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in lines] + [""]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def document(title: str, introduction: str, lines: Iterable[str]) -> str:
    """A whole page."""
    return "\n".join([f"# {title}", "", NOTE, "", introduction, "", *lines]).rstrip("\n") + "\n"


def kind(schema: dict[str, Any]) -> str:
    """A JSON schema's type in a few words."""
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(kind(part) for part in schema["anyOf"]))
    if schema.get("type") == "array":
        inner = kind(schema.get("items", {}))
        return f"array of {inner}" if inner else "array"
    return str(schema.get("type", ""))
