"""An indexer node as a process: the ingest thread beside the scan endpoint (`indexer.serve.process`), and the
scan processes before it, if there are any (`indexer.scan_processes`)."""

from __future__ import annotations

from prometheus_client import REGISTRY

from indexer.hosting.metrics import NodeMetrics
from indexer.hosting.node import ServingNode
from indexer.hosting.node_folder import NodeFolder
from indexer.ingest.loop import Ingest
from indexer.scan_processes.passing import Passed
from indexer.scan_processes.supervisor import ScanProcesses, check_system
from indexer.scan_processes.telling import Telling
from indexer.serve.process import Serving, endpoint
from keytide.process.program import say_ready
from keytide.serving.listener import listen, reserve
from keytide.serving.security import check_exposure
from keytide.settings.settings import Settings


class NodeService:
    """One node: its slices replay while the server starts."""

    def __init__(self, settings: Settings) -> None:
        security, host, name = settings.security, settings.indexer.host, "the scan endpoint"
        roles = settings.indexer.roles
        count = settings.indexer.scan_processes if "scan" in roles else 0
        check_exposure(name, host, security, "indexer.host")
        check_system(count)
        self._folder = NodeFolder(settings.data_dir, settings.indexer.node_id)
        listening = reserve if count else listen
        tls = bool(security.tls_certificate)
        listener, url = listening(name, host, settings.indexer.port, tls=tls, setting="indexer.port")
        node = ServingNode(self._folder.node_id)
        telling = Telling() if count else None
        ingest = Ingest(settings, self._folder, node, NodeMetrics(REGISTRY), url, telling)
        self._processes: ScanProcesses | None = None
        if telling is None:
            application = endpoint(node, settings, roles, "node")
            self._serving = Serving(settings, application, listener, url, ingest.run, "ingest")
            return
        node.watch = telling.watch
        self._processes = processes = ScanProcesses(
            count, node.node_id, listener, self._folder.path, telling, REGISTRY
        )
        application = endpoint(node, settings, roles, "node", processes.totals, processes.reasons)

        def announce(url: str) -> None:
            if processes.wait_serving():
                say_ready(url)

        self._serving = Serving(
            settings,
            lambda on_bug: Passed(application(on_bug)),
            processes.listener,
            url,
            ingest.run,
            "ingest",
            security=settings.security.model_copy(update={"tls_certificate": "", "tls_key": ""}),
            announce=announce,
            ending=processes.end,
            closing=processes.close,
        )

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises:
            KeytideError: the ingest thread's, when it failed; the invariant that a request found broken.
        """
        try:
            if self._processes is not None:
                self._processes.open(self._serving.fail)
            self._serving.run()
        finally:
            self._folder.close()
