"""The demo as `make demo` runs it, on the first flights of the year."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(900)]
LIMIT_S = 600


def test_the_demo_proves_its_indexes_and_leaves_nothing_behind(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "200"}
    environment.pop("KEEP", None)
    command = [str(Path(sys.executable).with_name("keytide")), "demo", "--flights", "3000"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        pytest.fail(f"the demo took longer than {LIMIT_S} s:\n{output[-3000:]}")
    assert process.returncode == 0, output[-3000:]
    # Two checks of each of four indexes, three of answers about places, each told and in the table
    assert output.count("zero differences") == 22, output[-3000:]
    assert "DEN     " in output, "the airports nearest to Denver"
    assert "every index equals its source" in output
    assert not list(tmp_path.glob("keytide-demo-*")), "the demo left its folder behind"
