"""What a process hears of the dictionary and of the control topic, and shows to its scan endpoint. Nodes and
gateways hear by the same ears.

Used by the one thread that reads both topics. A gateway is a node without slices: its view has a catalog,
published numbers and stamps, and no ring (`indexer.serve.gateway`).
"""

from __future__ import annotations

import logging
from typing import Protocol

from indexer.hosting.node import ServingNode
from keytide.catalog.catalog import Catalog
from keytide.geometry import load_libraries
from keytide.wire.messages import Leading, Published, StabilityTimestamp, UnreadableMessageError, decode

log = logging.getLogger(__name__)

NewNumbers = dict[str, int]
"""Index id -> the number that is published of it from now on."""


def histories_complete(catalog: Catalog) -> bool:
    """Whether every rollback that a keyspace has gone through is told: a reader of the dictionary may have
    met the new incarnation and not yet its record."""
    return all(
        {record.incarnation for record in catalog.rollbacks(keyspace.name)}
        >= set(range(1, keyspace.incarnation + 1))
        for keyspace in catalog.keyspaces()
    )


class TellsOn(Protocol):
    """Who is to hear it, too (`indexer.scan_processes.telling`)."""

    def control(self, position: int, data: bytes) -> None:
        """A record of the control topic."""
        ...

    def dictionary(self, catalog: Catalog) -> None:
        """The dictionary, when it has changed; nobody changes the copy any more."""
        ...


class MetadataFeed:
    """Tells a view.

    Args:
        node: what scans see of this process.
        others: who is told, too.
    """

    def __init__(self, node: ServingNode, others: TellsOn | None = None) -> None:
        self._node = node
        self._others = others
        self._known: frozenset[str] = frozenset()
        self._ready_for_places = False

    def dictionary(self, catalog: Catalog) -> bool:
        """The dictionary has changed; `catalog` is a copy that nobody changes any more. False when it cannot
        be gone by yet, and nothing was shown."""
        if catalog.cluster is None:
            return False  # the first leader has not written yet
        if not histories_complete(catalog):
            return False  # half of a rollback was read; the other half comes with the next poll
        self._node.show_catalog(catalog)
        if self._others is not None:
            self._others.dictionary(catalog)
        known = frozenset(index.id for index in catalog.indexes())
        for gone in self._known - known:
            self._node.control.forget_index(gone)
        self._known = known
        if not self._ready_for_places and any(
            one.definition.structure_type.has_places for one in catalog.indexes()
        ):
            self._ready_for_places = True
            load_libraries()  # here, and not when the first scan asks
        return True

    def control(self, position: int, data: bytes | None) -> StabilityTimestamp | NewNumbers | None:
        """A record of the control topic: a timestamp that counts, numbers that are newly published, or
        nothing that matters here.

        Args:
            position: its offset, which is a timestamp's number (R3).
        """
        if data is None:
            return None
        if self._others is not None:
            self._others.control(position, data)
        try:
            message = decode(data)
        except UnreadableMessageError as error:
            log.error("control, offset %d: %s", position, error)
            return None
        self._node.leader_heard()
        match message:
            case StabilityTimestamp():
                return message if self._node.control.stamped(position, message) else None
            case Published():
                new = self._node.control.publish(message)
                if new:
                    self._node.changed()
                return new or None
            case Leading():
                return None  # for coordinators that stand by
            case _:
                log.error("control, offset %d: a %s", position, type(message).__name__)
                return None
