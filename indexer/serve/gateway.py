"""A gateway: a scan coordinator without slices, as a process of its own.

It hears what nodes hear (metadata and control, `indexer.ingest.metadata`) and answers what they answer, each
slice read from a node that holds it, over HTTP. It writes nothing to Kafka: it sends no heartbeat, has no
place in the dictionary, and nothing is placed on it or waits for it. So there may be any number of gateways,
on any machines, and one that comes or goes is nobody's news. A node whose only role is `scan`
(`indexer.roles`) serves by the same parts, and is a node besides: it is listed, watched, and asked by name.

Kafka may be away when it starts: it waits, and `/readyz` says so. When Kafka goes away later, scans go on at
the newest published snapshot, which grows older.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from typing import Final

from confluent_kafka import KafkaException

from indexer.hosting.node import ServingNode
from indexer.ingest.consumer import ConsumerRecord, NodeConsumer
from indexer.ingest.metadata import MetadataFeed
from indexer.serve.process import Serving, endpoint
from keytide.kafka.admin import KafkaUnavailableError
from keytide.kafka.identity import KafkaIdentity
from keytide.kafka.topics import CatalogReader
from keytide.process.clock import now_ms
from keytide.serving.listener import listen
from keytide.serving.security import check_exposure
from keytide.settings.settings import Settings

log = logging.getLogger(__name__)

IDLE_S: Final = 0.02
"""Longest wait for control records in one pass: how late the dictionary may be read."""
START_S: Final = 5.0
"""One try to find the topics; Ctrl-C waits for it at most."""
RETRY_S: Final = 0.5


class Listener:
    """Follows metadata and control for a gateway. One thread.

    Args:
        view: what scans see.
    """

    def __init__(self, settings: Settings, view: ServingNode) -> None:
        self._catalog = CatalogReader(settings)
        self._identity = KafkaIdentity(settings, remember=False)
        self._consumer = NodeConsumer(settings, self._identity.confirmed)
        self._view = view
        self._hearing = MetadataFeed(view)

    def run(self, stop: threading.Event, started: threading.Event) -> None:
        """Listen until `stop` is set.

        Args:
            started: set once the dictionary was read.

        Raises:
            KafkaUnavailableError: Keytide's topics are gone.
            WrongKafkaError: another Kafka answers than before.
        """
        try:
            if not self._start(stop):
                return
            self._hearing.dictionary(self._catalog.snapshot())
            started.set()
            while not stop.is_set():
                self._pass()
        finally:
            self._consumer.close()
            self._catalog.close()
            self._identity.close()

    def _start(self, stop: threading.Event) -> bool:
        """Whether the topics were found before `stop` was set."""
        while not stop.is_set():
            try:
                self._identity.look()
                self._catalog.start(START_S)
                self._consumer.start(START_S)
            except (KafkaUnavailableError, KafkaException) as error:
                log.warning("waiting for the cluster: %s", error)
                self._catalog.close()
                stop.wait(RETRY_S)
                continue
            self._identity.open()
            return True
        return False

    def _pass(self) -> None:
        self._identity.check()
        for record in self._consumer.poll(IDLE_S, now_ms()):
            if isinstance(record, ConsumerRecord):
                self._hearing.control(record.position, record.data)
        if self._catalog.poll():
            self._hearing.dictionary(self._catalog.snapshot())
        self._view.passed(time.monotonic())


class Gateway:
    """One gateway."""

    def __init__(self, settings: Settings) -> None:
        security, host, name = settings.security, settings.gateway.host, "the gateway"
        check_exposure(name, host, security, "gateway.host")
        tls = bool(security.tls_certificate)
        listener, url = listen(name, host, settings.gateway.port, tls=tls, setting="gateway.port")
        view = ServingNode(f"gateway-{socket.gethostname()}-{secrets.token_hex(3)}")
        application = endpoint(view, settings, ("scan",), "gateway")
        self._serving = Serving(settings, application, listener, url, Listener(settings, view).run, "control")

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises:
            KeytideError: what ended the listener; the invariant that a request found broken.
        """
        self._serving.run()
