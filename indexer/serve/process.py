"""A scan endpoint as a process: work in a thread beside the HTTP server on the main thread.

The work begins first, so that there is something to answer from when the server has started. When it fails,
or a request finds an invariant broken, the server stops once it has answered, and the process ends with the
reason: a supervisor starts it again.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final

import pyarrow as pa
from prometheus_client import REGISTRY
from prometheus_client.registry import Collector
from starlette.types import ASGIApp

from indexer.hosting.node import ServingNode
from indexer.scan.http.problems import OnBug
from indexer.serve import health
from indexer.serve.api import create_app
from indexer.serve.one_write import OneWriteProtocol
from keytide.errors import KeytideError
from keytide.model.health import Reason, Verdict
from keytide.model.roles import Role
from keytide.process.metrics import build_info
from keytide.process.program import say_ready, spare_collections
from keytide.process.worker import Worker, logged
from keytide.serving.server import server_of
from keytide.settings.settings import SecuritySettings, Settings

log = logging.getLogger(__name__)

SWITCH_INTERVAL_S: Final = 0.0002
"""How soon working threads give way to scans: measured, half a millisecond (Python has five) took a third off
their 99th percentile, and this some more."""
STOP_WAIT_S: Final = 15.0
LOOK_S: Final = 0.1

ServiceWork = Callable[[threading.Event, threading.Event], None]
"""`work(stop, started)` runs until `stop` is set; it sets `started` once there is something to answer from.
An error that it raises ends the process."""


class Serving:
    """Serves scans until it is told to stop.

    Args:
        application: makes what answers; is given what to tell of invariants that do not hold.
        listener, url: where it serves. A function opens it once the work has something to answer from.
        work: runs in the thread `name`.
        security: in place of that of the settings.
        announce: says that it serves, with its URL.
        closing: called when nobody is answered any more, while the work goes on.
    """

    def __init__(
        self,
        settings: Settings,
        application: Callable[[OnBug], ASGIApp],
        listener: socket.socket | Callable[[], socket.socket],
        url: str,
        work: ServiceWork,
        name: str,
        *,
        security: SecuritySettings | None = None,
        announce: Callable[[str], None] = say_ready,
        ending: Callable[[Callable[[], None]], None] = lambda exit_now: exit_now(),
        closing: Callable[[], None] = lambda: None,
    ) -> None:
        self._listener, self._url = listener, url
        self._announced, self._ending, self._closing = announce, ending, closing
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._worker = Worker(name, self.fail, lambda: work(self._stop, self._started), daemon=False)
        self._stop = self._worker.stopping
        # By itself: it ends when it has spoken, and a node that nobody hears serves all the same.
        self._announcer = Worker("announce", logged, self._announce)
        self._server = server_of(
            application(self.fail),
            settings.http,
            security or settings.security,
            OneWriteProtocol,
            loop="uvloop",
        )

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises:
            KeytideError: the work's, when it failed; the invariant that a request found broken.
        """
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        # Arrow's own gives its memory back after every batch, and gets it anew with page faults: a tenth of
        # a stream's time or more (measured).
        pa.set_memory_pool(pa.system_memory_pool())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)  # uvicorn raises the signal again once it has stopped
        self._worker.open()
        self._announcer.open()
        try:
            if not isinstance(self._listener, socket.socket):
                while not (self._started.wait(LOOK_S) or self._server.should_exit):
                    pass
                self._listener = self._listener()
            self._server.run(sockets=[self._listener])
        finally:
            self._closing()
            self._worker.close(STOP_WAIT_S)
            self._announcer.close(LOOK_S)  # who speaks to nobody may be held up for ever
        if self._failure is not None:
            raise self._failure

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        self._ending(self._exit)

    def _exit(self) -> None:
        self._server.should_exit = True

    def fail(self, error: BaseException) -> None:
        """The work has failed, or a request has found an invariant broken: stop in order, and tell the story
        (`run` raises it)."""
        self._failure = self._failure or error
        self._server.should_exit = True

    def _announce(self) -> None:
        """One line on stdout once it serves."""
        while not (self._started.is_set() and self._server.started) and not self._stop.wait(0.01):
            pass
        if not self._stop.is_set():
            spare_collections()
            self._announced(self._url)


def endpoint(
    view: ServingNode,
    settings: Settings,
    roles: Sequence[Role],
    component: str,
    shown: Collector = REGISTRY,
    reasons: Callable[[], Sequence[Reason]] = tuple,
) -> Callable[[OnBug], ASGIApp]:
    """What answers on nodes and gateways, for `Serving`.

    Args:
        view: what scans see.
        roles: what it is for.
        component: what this process is, for its metrics.
        shown: its metrics, as their page has them.
        reasons: what else its health tells of.
    """
    build_info(component)
    limit_s = settings.coordinator.suspect_ms / 1000

    def verdict() -> Verdict:
        return health.of(view, time.monotonic(), limit_s, reasons())

    return lambda on_bug: create_app(view, settings, REGISTRY, on_bug, verdict, roles, shown)


def exit_status(error: BaseException) -> int:
    """2 when something outside is wrong (tried again by a supervisor), 70 for a bug of ours."""
    if isinstance(error, KeytideError) and error.problem_type != "invariant-violated":
        print(f"{error.message}\n{error.next_step}".strip(), file=sys.stderr)
        return 2
    log.critical("the process ends because of a bug", exc_info=error)
    return 70
