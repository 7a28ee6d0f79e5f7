"""The services as programs: they say what they are, and take no arguments."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from keytide.process.program import say_ready
from tests.unit.test_style import PRODUCT, named, sources


@pytest.mark.parametrize("module", ["coordinator", "indexer", "projector"])
def test_help_is_given(module: str) -> None:
    told = _run("-m", module, "--help")
    assert (told.returncode, f"python -m {module}" in told.stdout) == (0, True), told.stderr


def test_who_gives_help_refuses_arguments() -> None:
    script = "from keytide.process.program import no_arguments; no_arguments('coordinator', 'It leads.')"
    refused = _run("-c", script, "--port", "1")
    assert refused.returncode == 2
    assert "unrecognized arguments: --port 1" in refused.stderr


def test_a_process_that_crashes_leaves_its_stacks_in_its_log(tmp_path: Path) -> None:
    """The node is a process as any other; it waits for a Kafka here that never answers."""
    log = tmp_path / "node.log"
    with socket.create_server(("127.0.0.1", 0)) as kafka, log.open("wb") as out:
        env = {
            **os.environ,
            "KEYTIDE_DATA_DIR": str(tmp_path / "data"),
            "KEYTIDE_KAFKA__BOOTSTRAP": f"127.0.0.1:{kafka.getsockname()[1]}",
            "KEYTIDE_INDEXER__PORT": "0",
        }
        kafka.settimeout(60)
        with subprocess.Popen([sys.executable, "-m", "indexer"], stdout=out, stderr=out, env=env) as process:
            try:
                kafka.accept()[0].close()
                process.send_signal(signal.SIGSEGV)
                assert process.wait(60) == -signal.SIGSEGV
            finally:
                process.kill()
    stacks = log.read_text(errors="replace").partition("Fatal Python error: ")[2]
    assert "indexer/serve/service.py" in stacks or "indexer/serve/process.py" in stacks


def test_the_line_that_says_ready_is_one_write() -> None:
    """Else the log of another thread comes into the middle of it, where Python does not buffer."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # one message for each write
    command = [
        sys.executable,
        "-u",
        "-c",
        "from keytide.process.program import say_ready; say_ready('http://127.0.0.1:1')",
    ]
    with ours, theirs:
        subprocess.run(command, stdout=theirs.fileno(), check=True, timeout=300)
        assert ours.recv(100) == b"ready http://127.0.0.1:1\n"


def test_who_has_no_stdout_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    say_ready("nowhere")


def test_libraries_that_tell_of_every_request_are_heard_from_warnings_on() -> None:
    script = """
import logging
from keytide.process.program import log_to_stderr
log_to_stderr()
for name in ("httpx", "urllib3.connectionpool", "indexer"):
    logging.getLogger(name).info("at work")
    logging.getLogger(name).warning("in need")
"""
    told = subprocess.run(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, timeout=300, check=True
    )
    heard = [line.split(" ", 2)[2] for line in told.stderr.splitlines()]
    assert heard == [
        "WARNING httpx: in need",
        "WARNING urllib3.connectionpool: in need",
        "INFO indexer: at work",
        "WARNING indexer: in need",
    ]


def test_every_process_begins_as_the_others_do() -> None:
    """A module that can be run calls `begin`, or something that does (but what only makes files)."""
    begins = ("begin()", "no_arguments(", "run_driver(")
    makers = ("deploy/archive.py", "deploy/jars.py", "deploy/spark_home.py")
    silent = [
        named(path)
        for path in sources(PRODUCT)
        if '__name__ == "__main__"' in (text := path.read_text())
        and not any(one in text for one in begins)
        and named(path) not in makers
    ]
    assert silent == []


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
