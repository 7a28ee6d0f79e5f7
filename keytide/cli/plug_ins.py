"""Commands that other packages bring, by entry points of the group `keytide.commands`: a command's name and
the function behind it, as for `typer.Typer.command`.

They are looked up only when help is asked for, or a command that `keytide.cli` does not have itself.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import typer
from typer.core import TyperGroup

from keytide.cli.output import friendly_errors
from keytide.errors import CallerError

GROUP: Final = "keytide.commands"
_INSTALL: Final = "install Keytide anew (`make setup` in a clone)"


class CommandGroup(TyperGroup):
    """The commands of `keytide.cli`, and those of plug-ins."""

    _brought: tuple[str, ...] | None = None

    def list_commands(self, ctx: Any) -> list[str]:
        brought = self._plug_in()
        return [*brought, *(name for name in self.commands if name not in brought)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and not self._plug_in() and not ctx.resilient_parsing:
            ctx.fail(
                f"No such command {cmd_name!r}. No package brings commands (entry points of the group "
                f"{GROUP}), as `deploy` brings `up`: {_INSTALL}."
            )
        return self.commands.get(cmd_name)

    def _plug_in(self) -> tuple[str, ...]:
        """Names of the commands that plug-ins bring, which can be called from now on."""
        if self._brought is None:
            found = [one for one in entry_points(group=GROUP) if one.name not in self.commands]
            self.commands.update({one.name: _command(one) for one in found})
            self._brought = tuple(one.name for one in found)
        return self._brought


def _command(entry: EntryPoint) -> Any:
    """The command of an entry point; if it cannot be loaded, one that says why."""
    try:
        return _of_function(entry.name, entry.load())
    except Exception as error:  # noqa: BLE001 - whatever a package raises at import; the command tells it
        why = f"{entry.value} cannot be loaded: {type(error).__name__}: {error}"

    def broken() -> None:
        with friendly_errors():
            raise CallerError(
                f"`keytide {entry.name}`: {why}", problem_type="broken-plug-in", next_step=_INSTALL
            )

    everything = {"allow_extra_args": True, "ignore_unknown_options": True}
    return _of_function(entry.name, broken, help=why, context_settings=everything)


def _of_function(name: str, function: Any, **options: Any) -> Any:
    one = typer.Typer(add_completion=False)
    one.command(name, **options)(function)
    return typer.main.get_command(one)
