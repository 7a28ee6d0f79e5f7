"""The driver in waiting (`python -m streaming.in_waiting`): started before it is needed, for to start Python
and load what a driver is made of takes longer than all else of a small build.

One waits while a coordinator leads. It becomes the driver that is started next, whichever that is, and
another one takes its place. Where none waits, or it has died, drivers are started as ever: nothing rests on
it. Used by the thread of the supervisor, as whose child it dies with the coordinator.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from keytide.process.parent_death import die_with_parent
from keytide.process.title import ROOM

log = logging.getLogger(__name__)

MODULE: Final = "streaming.in_waiting"
FIRST_S: Final = 2.0
"""Before the first is started: when a coordinator begins to lead, the machine often has other parts to
start."""
AGAIN_S: Final = 2.0
"""The same, when one has become a driver, and works."""
LOOK_S: Final = 60.0
"""How often to look whether it is still there."""


class DriverInWaiting:
    """Keeps one.

    Args:
        wanted: whether there is to be one at all.
        environment: of every driver.
        command: what runs it.
    """

    def __init__(
        self, wanted: bool, environment: Mapping[str, str], command: Sequence[str] | None = None
    ) -> None:
        self._wanted = wanted
        self._environment = environment
        self._command = command or [sys.executable, "-m", MODULE, ROOM]
        self._process: subprocess.Popen[bytes] | None = None
        self._due: float | None = None

    def expect(self, in_s: float = 0.0) -> None:
        """Have one wait from about then on."""
        if self._wanted and self._process is None:
            self._due = time.monotonic() + in_s

    @property
    def due_s(self) -> float | None:
        """Until `look` is to be called; None for never."""
        if self._due is None:
            return None if self._process is None else LOOK_S
        return max(0.0, self._due - time.monotonic())

    def look(self) -> None:
        """Start it, when that is due, and in the place of one that has ended."""
        if self._process is not None and self._process.poll() is not None:
            self._ended()
            self.expect(LOOK_S)
        if self._due is None or time.monotonic() < self._due:
            return
        self._due = None
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **self._environment},
                process_group=0,
                preexec_fn=die_with_parent(),
            )
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("no driver waits: it cannot be started: %s", error)

    def take(
        self, module: str, arguments: Sequence[str], log_file: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes] | None:
        """The one that waits, which is this driver from now on; None when none does, or it still loads."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return None
        if not select.select([process.stdout], [], [], 0)[0]:
            return None
        orders = {
            "module": module,
            "arguments": list(arguments),
            "log": str(log_file),
            "environment": dict(environment),
        }
        with contextlib.suppress(OSError), process.stdin as told, process.stdout as ready:
            if ready.read(1):  # (nothing of one that has ended)
                told.write(json.dumps(orders).encode() + b"\n")
                told.flush()
                self._process = None
                return process
        self._ended()
        return None

    def _ended(self) -> None:
        log.warning("the driver that waited has ended")
        self.end()

    def end(self) -> None:
        """End the one that waits."""
        self._due = None
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()
