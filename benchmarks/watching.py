"""Who uses the processor and the memory while something is measured, processes that come and go among them.

Theory of operation: a thread looks at all parts of the cluster, and at what they have started, twice a
second, and keeps the most that it saw of each process. What a process uses between the last look and its end
is lost: half a second of it at most. The driver of a build is a child of the coordinator and is shown apart,
with its JVM and Python workers, as `driver`.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import psutil

INTERVAL_S: Final = 0.5
DRIVER: Final = "streaming."
"""In the command line of a driver: `python -m streaming.backfill --build ...`."""
MB: Final = 1_000_000
CALM_S: Final = 1.0
CALM_SHARE: Final = 0.6
"""Of a processor: an idle cluster with its Kafka uses up to 0.4."""
CALM_LIMIT_S: Final = 60.0


class Watch:
    """Samples until `stop`.

    Args:
        parts: gives name -> process id of the parts that run now.

    Attributes:
        seconds: name -> processor seconds used since the start.
        peak_mb: name -> most memory seen, of all its processes together, beyond the page cache (resident less
            shared).
    """

    def __init__(self, parts: Callable[[], Mapping[str, int]]) -> None:
        self._parts = parts
        self._used: dict[tuple[str, int], float] = {}
        self._before: dict[int, float] = {}
        self.peak_mb: dict[str, int] = {}
        self._end = threading.Event()
        self._look()
        self._before = {pid: used for (_, pid), used in self._used.items()}
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    @property
    def seconds(self) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for (name, pid), used in self._used.items():
            found[name] += used - self._before.get(pid, 0.0)
        return dict(found)

    def stop(self) -> None:
        """Look once more, and end."""
        self._end.set()
        self._thread.join()
        self._look()

    def _run(self) -> None:
        while not self._end.wait(INTERVAL_S):
            self._look()

    def _look(self) -> None:
        memory: dict[str, int] = defaultdict(int)
        for name, pid in self._parts().items():
            try:
                process = psutil.Process(pid)
                below = [] if pid == os.getpid() else process.children(recursive=True)
            except psutil.NoSuchProcess:
                continue
            drivers: set[int] = set()
            for one in [process, *below]:  # parents come before their children
                try:
                    if one.ppid() in drivers or (one.pid != pid and _is_driver(one)):
                        drivers.add(one.pid)
                    group = "driver" if one.pid in drivers else name
                    times, resident = one.cpu_times(), one.memory_info()
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue
                self._used[group, one.pid] = times.user + times.system
                memory[group] += (resident.rss - resident.shared) // MB
        for name, used in memory.items():
            self.peak_mb[name] = max(used, self.peak_mb.get(name, 0))


def calm() -> None:
    """Wait until what this process has started is done with what it was given: for some seconds more a JVM
    compiles what it has run, and a node folds. After a minute it is not waited for."""
    deadline = time.monotonic() + CALM_LIMIT_S
    used = _used_below()
    while time.monotonic() < deadline:
        time.sleep(CALM_S)
        used, before = _used_below(), used
        if sum(seconds - before.get(pid, 0.0) for pid, seconds in used.items()) < CALM_SHARE * CALM_S:
            return


def _used_below() -> dict[int, float]:
    """Processor seconds of all processes that this one has started, and those that they have."""
    found: dict[int, float] = {}
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            found[one.pid] = times.user + times.system
    return found


def _is_driver(process: psutil.Process) -> bool:
    return any(part.startswith(DRIVER) for part in process.cmdline())
