"""`python -m indexer.serve.scan_process CHANNEL FOLDER`: a scan process (`indexer.scan_processes`), which a
node starts for itself: what is pinned, behind an HTTP server on the node's address. The arguments are file
descriptors that it inherits; settings come from keytide.toml and KEYTIDE_* variables."""

from __future__ import annotations

import socket
import sys
import threading

from prometheus_client import CollectorRegistry

from indexer.scan.http.problems import OnBug
from indexer.scan_processes.channel import read
from indexer.scan_processes.core.messages import Welcome, welcome_decoder
from indexer.scan_processes.node import NodeListener, PinnedNode
from indexer.scan_processes.pages import PageApplication, gated, samples_of
from indexer.scan_processes.passing import Passing, way_to
from indexer.serve.process import Serving, exit_status
from keytide.errors import KeytideError
from keytide.process.parent_death import follow_parent
from keytide.process.program import begin, log_to_stderr
from keytide.serving.gate import RequestGate
from keytide.serving.listener import listen_beside
from keytide.settings.settings import Settings, load_settings


class ScanProcess:
    """One of them.

    Args:
        end: of the channel to the node.
        folder: the node's, open.
    """

    def __init__(self, settings: Settings, end: socket.socket, folder: int) -> None:
        welcome = _welcome(end)
        view = PinnedNode(welcome.node)
        registry = CollectorRegistry()
        passing = Passing(way_to(folder))
        self._serves = threading.Event()
        listener = NodeListener(
            end, view, self._serves.is_set, lambda: passing.count, lambda: samples_of(registry)
        )

        def application(on_bug: OnBug) -> RequestGate:
            return gated(PageApplication(view, settings, passing, registry, on_bug), settings, view)

        self._serving = Serving(
            settings,
            application,
            lambda: listen_beside(welcome.host, welcome.port),
            "",
            listener.run,
            "node",
            announce=lambda _: self._serves.set(),
        )

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, or the end of the node.

        Raises:
            KeytideError: an invariant that was found broken.
        """
        self._serving.run()


def _welcome(end: socket.socket) -> Welcome:
    for message, _ in read(end, threading.Event()):
        return welcome_decoder.decode(message)
    raise KeytideError("the node of this scan process has ended")


def main(channel: int, folder: int) -> int:
    """Run until SIGTERM or SIGINT, or the end of the node; the exit status."""
    follow_parent()
    log_to_stderr()
    try:
        ScanProcess(load_settings(), socket.socket(fileno=channel), folder).run()
    except Exception as error:  # noqa: BLE001 - the end of the process: told, never swallowed
        return exit_status(error)
    return 0


if __name__ == "__main__":
    begin()
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
