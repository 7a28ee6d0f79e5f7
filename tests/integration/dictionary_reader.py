"""The dictionary as tests look at it: read once, and then what has come since."""

from __future__ import annotations

from keytide.catalog.catalog import Catalog
from keytide.kafka.admin import admin, list_offsets
from keytide.kafka.topics import CatalogReader
from keytide.model.topics import Topics
from keytide.settings.settings import Settings


class DictionaryReader:
    """The metadata topic of a cluster."""

    def __init__(self, settings: Settings) -> None:
        self._topic = Topics(settings.cluster).metadata
        self._reader = CatalogReader(settings)
        self._reader.start()
        self._client = admin(settings)

    def now(self) -> Catalog:
        """As it is now; a copy."""
        end = list_offsets(self._client, self._topic, [0])[0]
        while self._reader.catalog.offset < end:
            self._reader.poll(0.1)
        return self._reader.snapshot()

    def close(self) -> None:
        self._reader.close()
        self._client.close()
