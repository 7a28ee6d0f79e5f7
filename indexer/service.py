"""An indexer node as a process: the ingest thread, and the HTTP server on the main thread.

The ingest thread begins first, so that slices replay while the server starts. When it fails, or a request
finds an invariant broken, the server stops once it has answered, and the process ends with the reason: a
supervisor starts it again.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from types import FrameType
from typing import Final

import uvicorn
from prometheus_client import REGISTRY

from indexer.api import create_app
from indexer.folder import NodeFolder
from indexer.ingest import Ingest
from indexer.metrics import NodeMetrics
from indexer.node import Node
from keytide.errors import InvariantViolationError, KeytideError
from keytide.http_security import check_exposure
from keytide.listening import listen
from keytide.settings import Settings

log = logging.getLogger(__name__)

SWITCH_INTERVAL_S: Final = 0.0005
"""How soon the ingest thread gives way to scans: measured, it takes a third off their 99th percentile."""
STOP_WAIT_S: Final = 15.0


class Service:
    """One node. `run` returns the exit status."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        security, host, name = settings.security, settings.indexer.host, "the scan endpoint"
        check_exposure(name, host, security, "indexer.host")
        self._folder = NodeFolder(settings.data_dir, settings.indexer.node_id)
        tls = bool(security.tls_certificate)
        self._listener, self._url = listen(name, host, settings.indexer.port, tls=tls, setting="indexer.port")
        self._node = Node(self._folder.node_id)
        self._stop = threading.Event()
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._ingest = Ingest(settings, self._folder, self._node, NodeMetrics(REGISTRY), self._url)
        self._server = uvicorn.Server(
            uvicorn.Config(
                create_app(self._node, settings, REGISTRY, self._end_by_bug),
                loop="uvloop",
                http="httptools",
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=2,
                ssl_certfile=security.tls_certificate or None,
                ssl_keyfile=security.tls_key or None,
            )
        )

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises:
            KeytideError: the ingest thread's, when it failed; the invariant that a request found broken.
        """
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)  # uvicorn raises the signal again once it has stopped
        thread = threading.Thread(target=self._run_ingest, name="ingest")
        announcer = threading.Thread(target=self._announce, name="announce", daemon=True)
        thread.start()
        announcer.start()
        try:
            self._server.run(sockets=[self._listener])
        finally:
            self._stop.set()
            thread.join(STOP_WAIT_S)
            self._folder.close()
        if self._failure is not None:
            raise self._failure

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        self._server.should_exit = True

    def _end_by_bug(self, error: InvariantViolationError) -> None:
        """A request has found an invariant broken: stop in order, and tell the story (`run` raises it)."""
        self._failure = self._failure or error
        self._server.should_exit = True

    def _run_ingest(self) -> None:
        try:
            self._ingest.run(self._stop, self._started)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the process ends with it
            self._failure = error
        finally:
            self._server.should_exit = True

    def _announce(self) -> None:
        """One line on stdout once the node serves."""
        self._started.wait()
        while not self._server.started and not self._stop.wait(0.01):
            pass
        if not self._stop.is_set():
            print(f"ready {self._url}", flush=True)


def exit_status(error: BaseException) -> int:
    """2 when something outside is wrong (tried again by a supervisor), 70 for a bug of ours."""
    if isinstance(error, KeytideError) and error.problem_type != "invariant-violated":
        print(f"{error.message}\n{error.next_step}".strip(), file=sys.stderr)
        return 2
    log.critical("the node ends because of a bug", exc_info=error)
    return 70
