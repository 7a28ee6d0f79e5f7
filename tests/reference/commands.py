"""Every command with its arguments and options, from the command's own parser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from keytide.cli import app
from tests.reference.writing import document, table

INTRODUCTION = """`--help` behind any command says the same. Every command that asks a server takes `--json`,
which prints what the server said; errors go to standard error, with what to do next, and the exit status is
not 0."""


def page() -> str:
    """docs/reference/commands.md."""
    lines = [line for path, command in every_command() for line in _one(path, command)]
    return document("Commands", INTRODUCTION, lines)


def every_command() -> Iterator[tuple[str, Any]]:
    """What is typed for a command, and the command: of all that `keytide` has, those of plug-ins too, the
    outer ones first."""
    return _below("keytide", typer.main.get_command(app))


def _below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Typer has a parser of its own, made as Click's: its types are private."""
    yield path, command
    if hasattr(command, "list_commands"):
        context = command.make_context(path, [], resilient_parsing=True)
        for name in sorted(command.list_commands(context)):
            inner = command.get_command(context, name)
            if not inner.hidden:
                yield from _below(f"{path} {name}", inner)


def names() -> Iterator[tuple[str, ...]]:
    """Every command and group as its words, those that are hidden left out."""
    return (tuple(path.split()) for path, _ in every_command())


def _one(path: str, command: Any) -> Iterator[str]:
    yield from (f"## {path}", "", _plain(command.help or ""), "")
    rows = [row for parameter in command.params if (row := _row(parameter)) is not None]
    if rows:
        yield from table(("argument or option", "default", "what it does"), rows)


def _plain(text: str) -> str:
    """Help as a paragraph or several: form feeds and indentation go."""
    paragraphs = text.replace("\f", "").replace("\b", "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _row(parameter: Any) -> tuple[str, str, str] | None:
    """None for what every command has, or what is not shown."""
    if parameter.param_type_name == "option":
        if parameter.hidden or parameter.name in ("help", "install_completion", "show_completion"):
            return None
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        flag = parameter.is_flag or parameter.default in (None, (), [], "", ...)
        default = "" if flag or callable(parameter.default) else f"`{parameter.default}`"
        variable = f" [env: {parameter.envvar}]" if parameter.envvar else ""
        return names, default, (parameter.help or "") + variable
    name = f"`{(parameter.metavar or parameter.name or '').upper()}`"
    return name, "" if parameter.required else "may be left out", parameter.help or ""
