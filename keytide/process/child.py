"""Children that run a module of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

_ROOT: Final = str(Path(__file__).resolve().parents[2])


def start_module(module: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """`python -m MODULE ARGUMENTS`, with our packages from where this process has them.

    Args:
        options: of `subprocess.Popen`, but for the environment, which is ours.

    Raises:
        OSError: it cannot be started.
    """
    paths = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen([sys.executable, "-m", module, *arguments], env=environment, **options)
