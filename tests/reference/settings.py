"""Every setting with its default and its reason, from the models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from keytide.settings.settings import Settings
from tests.reference.writing import document, table

INTRODUCTION = """Settings come from `keytide.toml` in the working folder (`KEYTIDE_CONFIG` names another
file), overridden by `KEYTIDE_*` environment variables, overridden by flags. `indexer.port` is `port = 8094`
below `[indexer]` in the file and `KEYTIDE_INDEXER__PORT=8094` in the environment. Defaults are written as
JSON. What to turn when: [tune](../tune.md)."""


def sections() -> Iterator[tuple[str, dict[str, FieldInfo]]]:
    """(name, fields) of the settings at the top ("") and of every section."""
    tops: dict[str, FieldInfo] = {}
    inner: list[tuple[str, dict[str, FieldInfo]]] = []
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            inner.append((name, type(default).model_fields))
        else:
            tops[name] = field
    yield "", tops
    yield from inner


def written(field: FieldInfo) -> str:
    """A field's default as JSON; "required" where there is none."""
    if field.is_required():
        return "required"
    default: Any = field.get_default(call_default_factory=True)
    return f"`{json.dumps(default, default=str)}`"


def page() -> str:
    """docs/reference/settings.md."""
    lines: list[str] = []
    for section, fields in sections():
        lines += [f"## {section}" if section else "## The cluster", ""]
        names = {name: f"{section}.{name}" if section else name for name in fields}
        rows = [(f"`{names[name]}`", written(of), of.description or "") for name, of in fields.items()]
        lines += table(("setting", "default", "what it is, and why"), rows)
    return document("Settings", INTRODUCTION, lines)
