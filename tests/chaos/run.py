"""What all threads of a chaos run share: the cluster, the indexes that may be scanned, the counts, and the
first thing that went wrong."""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keytide.cli.admin import Admin
from keytide.client import Client
from keytide.errors import KeytideError, RetryableError
from tests.chaos.patience import Patience, builds_of
from tests.chaos.shapes import Shape
from tests.chaos.truth import Truth
from tests.waiting import slowness

Say = Callable[[str], None]
ANSWER_MS = 6_000
NEEDED_S = 15.0
"""For a driver to start and finish a micro-batch, at least."""


class StoppedError(Exception):
    """The run is over while something was waited for."""


@dataclass(frozen=True, slots=True)
class Target:
    """An index that can be scanned now. A name that is dropped and created again is another target."""

    name: str
    keyspace: str
    shape: Shape


@dataclass(slots=True)
class Problem:
    """The first thing that went wrong."""

    what: str
    lines: list[str] = field(default_factory=list)


class Run:
    """One run.

    Args:
        coordinator, bootstrap: URL and servers of the cluster under test.
        cluster: its name.
        seed: shown when something goes wrong.
    """

    def __init__(self, coordinator: str, bootstrap: str, cluster: str, seed: int) -> None:
        self.coordinator = coordinator
        self.bootstrap = bootstrap
        self.cluster = cluster
        self.seed = seed
        self.began = time.monotonic()
        self.stopping = threading.Event()
        self.truths: dict[str, Truth] = {}
        self.counts: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.log: list[str] = []
        self.recoveries: dict[str, list[float]] = {}
        self.last = ""
        self.rolled_back = False
        self.struck_at: float | None = None
        self.needed_s = NEEDED_S
        self.problem: Problem | None = None
        self._nodes: list[str] = []
        self._targets: dict[str, Target] = {}
        self._lock = threading.Lock()

    # --- what went on ------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """A line of the story: a fault, a build."""
        self.last = text
        self.log.append(f"{time.monotonic() - self.began:8.2f} s  {text}")

    def count(self, **more: int) -> None:
        with self._lock:
            self.counts.update(more)

    def refused(self, error: KeytideError) -> None:
        """An answer that says why there is none."""
        with self._lock:
            self.refusals[f"{error.status} {error.problem_type}"] += 1

    def fail(self, what: str, lines: Iterable[str] = ()) -> None:
        """Something is wrong: remember the first, and end the run."""
        with self._lock:
            if self.problem is None:
                self.problem = Problem(what, list(lines))
        self.note(f"WRONG: {what}")
        self.stopping.set()

    def strike(self) -> None:
        """A fault strikes, or is over."""
        self.struck_at = time.monotonic()

    def could(self, seconds: float) -> None:
        """Without any fault a build had its first micro-batch done after so long."""
        if self.struck_at is None:
            self.needed_s = max(self.needed_s, seconds)

    def patience(self, still_s: float, most_s: float) -> Patience:
        """With the builds of the cluster."""
        return Patience(
            lambda: builds_of(self.coordinator),
            still_s,
            most_s,
            struck=lambda: self.struck_at,
            needed=lambda: self.needed_s,
        )

    # --- waiting -----------------------------------------------------------------------------------------

    def pause(self, seconds: float) -> None:
        """Wait, unless the run ends.

        Raises:
            StoppedError: it does.
        """
        if self.stopping.wait(seconds):
            raise StoppedError

    def guarded(self, work: Callable[[], None]) -> Callable[[], None]:
        """`work` for a thread: whatever it raises ends the run and is told."""

        def run() -> None:
            try:
                work()
            except StoppedError:
                pass
            except BaseException as error:
                self.fail(
                    f"{type(error).__name__} in the chaos driver: {error}",
                    traceback.format_exc().splitlines(),
                )
                raise

        return run

    # --- the cluster -------------------------------------------------------------------------------------

    def admin(self, method: str, path: str, body: Any = None, *, limit: float = 90.0) -> Any:
        """Call the coordinator; waits while it is away, for as long as the machine is slow.

        Raises:
            KeytideError: what it answers, if that is no use trying again.
            StoppedError: the run is over.
        """
        limit *= slowness()
        deadline = time.monotonic() + limit
        while True:
            try:
                with Admin(self.coordinator) as admin:
                    return admin.call(method, path, body)
            except RetryableError as error:
                if time.monotonic() > deadline:
                    self.fail(
                        f"the coordinator does not answer {method} {path} for {limit:.0f} s: {error.message}"
                    )
                self.pause(0.3)

    def nodes(self) -> list[str]:
        """URLs of all indexer nodes, also of those that are away."""
        if not self._nodes:
            self._nodes = [node["url"] for node in self.admin("GET", "/v1/nodes") if node["url"]]
        return self._nodes

    def client(self, number: int) -> Client:
        urls = self.nodes()
        return Client(urls[number % len(urls)], retries=1)

    def build(self, names: list[str]) -> str:
        """Start a build; its id. One that was begun by a call whose answer was lost is found."""
        try:
            return str(self.admin("POST", "/v1/builds", {"indexes": names})["id"])
        except KeytideError as error:
            if error.problem_type != "index-not-buildable":
                raise
            return str(self.admin("GET", f"/v1/indexes/{names[0]}")["build"])

    def build_state(self, build: str) -> dict[str, Any]:
        state: dict[str, Any] = self.admin("GET", f"/v1/builds/{build}")
        return state

    # --- indexes -----------------------------------------------------------------------------------------

    def targets(self) -> list[Target]:
        with self._lock:
            return list(self._targets.values())

    def offer(self, target: Target) -> None:
        """Let readers scan it."""
        with self._lock:
            self._targets[target.name] = target

    def withdraw(self, target: Target) -> None:
        """It is about to be dropped."""
        with self._lock:
            if self._targets.get(target.name) is target:
                del self._targets[target.name]

    def offered(self, target: Target) -> bool:
        with self._lock:
            return self._targets.get(target.name) is target

    # --- the end -----------------------------------------------------------------------------------------

    def summary(self, **more: Any) -> dict[str, Any]:
        """The figures of the run."""
        spans = {
            kind: {
                "times": len(found),
                "median_s": round(sorted(found)[len(found) // 2], 2),
                "max_s": round(max(found), 2),
            }
            for kind, found in sorted(self.recoveries.items())
        }
        return {
            "seed": self.seed,
            "minutes": round((time.monotonic() - self.began) / 60, 2),
            "differences": int(self.problem is not None),
            **dict(sorted(self.counts.items())),
            "refusals": dict(sorted(self.refusals.items())),
            "fresh_again": spans,
            **more,
        }

    def report(self, logs: Path | None) -> list[str]:
        """The problem with all that helps to find its cause."""
        if self.problem is None:
            return []
        return [
            f"WRONG (seed {self.seed}): {self.problem.what}",
            *(f"    {line}" for line in self.problem.lines),
            "What happened before:",
            *(f"    {line}" for line in self.log[-40:]),
            f"Logs: {logs}" if logs else "Logs: where the cluster keeps them",
        ]
