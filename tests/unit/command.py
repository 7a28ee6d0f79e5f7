"""The command, run within the process. Typer's own runner makes all commands anew for each line, which takes
longer than most lines do. (Not for tests that change what there is: those of plug-ins.)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from typer import testing
from typer.main import get_command

from keytide.cli import app

_COMMAND = get_command(app)


def run_command(arguments: Sequence[str], **how: Any) -> testing.Result:
    """What a line comes to, told as by typer's runner, which takes `how`."""
    with patch.object(testing, "_get_command", return_value=_COMMAND):
        return testing.CliRunner().invoke(app, arguments, **how)
