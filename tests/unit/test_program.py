"""The services as programs: they say what they are, and take no arguments."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["coordinator", "indexer", "projector"])
def test_help_is_given_and_arguments_are_refused(module: str) -> None:
    told = _run(module, "--help")
    assert (told.returncode, f"python -m {module}" in told.stdout) == (0, True), told.stderr
    refused = _run(module, "--port", "1")
    assert refused.returncode == 2
    assert "unrecognized arguments: --port 1" in refused.stderr


def _run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
