"""Children that are killed: forked from one process that has imported what they need. To begin as a process
of its own would take a child three times as long as what most tests have it do.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, Self, cast

ROOT = Path(__file__).parents[1]
LIMIT_S = 120
"""After that a child is ended by SIGALRM."""
_PARENT = f"""
import importlib, json, os, signal, sys, traceback
from keytide.process import sync_points

for module in sys.argv[1:]:
    importlib.import_module(module)
for line in sys.stdin:
    program, folder, point, out = json.loads(line)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    signal.alarm({LIMIT_S})
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 1)
    os.environ["KEYTIDE_SYNC_POINT"] = point  # of what it starts, too
    sync_points._armed = sync_points._Armed(point)
    sys.argv[1:] = [folder]
    status = 0
    try:
        exec(program, {{"__name__": "__main__"}})
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    os._exit(status)
"""


class Forking:
    """Runs programs, one after the other. Use within `with`.

    Args:
        modules: what the programs import; a program that imports more does so itself.
    """

    def __init__(self, *modules: str) -> None:
        command = [sys.executable, "-c", _PARENT, *modules]
        self._parent = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, program: str, folder: Path, out: Path, point: str = "") -> tuple[int, str]:
        """(exit status, stdout) of a program, which finds `folder` as its argument.

        Args:
            out: a file for its stdout.
            point: where it ends or waits, as in `KEYTIDE_SYNC_POINT`; "" for nowhere.
        """
        asking, answers = cast(tuple[IO[str], IO[str]], (self._parent.stdin, self._parent.stdout))
        asking.write(json.dumps([program, str(folder), point, str(out)]) + "\n")
        asking.flush()
        return int(answers.readline()), out.read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        with self._parent:  # it ends when it hears no more
            pass
