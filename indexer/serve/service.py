"""An indexer node as a process: the ingest thread beside the scan endpoint (`indexer.serve.process`)."""

from __future__ import annotations

from prometheus_client import REGISTRY

from indexer.hosting.metrics import NodeMetrics
from indexer.hosting.node import ServingNode
from indexer.hosting.node_folder import NodeFolder
from indexer.ingest.loop import Ingest
from indexer.serve.process import Serving
from keytide.serving.listener import listen
from keytide.serving.security import check_exposure
from keytide.settings.settings import Settings


class NodeService:
    """One node: its slices replay while the server starts."""

    def __init__(self, settings: Settings) -> None:
        security, host, name = settings.security, settings.indexer.host, "the scan endpoint"
        check_exposure(name, host, security, "indexer.host")
        self._folder = NodeFolder(settings.data_dir, settings.indexer.node_id)
        tls = bool(security.tls_certificate)
        listener, url = listen(name, host, settings.indexer.port, tls=tls, setting="indexer.port")
        node = ServingNode(self._folder.node_id)
        ingest = Ingest(settings, self._folder, node, NodeMetrics(REGISTRY), url)
        roles = settings.indexer.roles
        self._serving = Serving(settings, node, listener, url, ingest.run, "ingest", roles)

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises:
            KeytideError: the ingest thread's, when it failed; the invariant that a request found broken.
        """
        try:
            self._serving.run()
        finally:
            self._folder.close()
