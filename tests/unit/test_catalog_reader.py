"""The reader of the metadata topic while Kafka is away."""

from __future__ import annotations

import pytest

from keytide.kafka import topics as kafka
from keytide.kafka.admin import KafkaUnavailableError
from keytide.kafka.topics import CatalogReader
from keytide.settings.settings import load_settings


def test_all_tries_use_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client is four threads, freed only when Python looks for cycles."""
    made: list[object] = []

    def admin(_: object) -> object:
        made.append(object())
        return made[-1]

    def away(*_: object) -> dict[str, object]:
        raise KafkaUnavailableError("nobody answers")

    monkeypatch.setattr(kafka, "admin", admin)
    monkeypatch.setattr(kafka, "describe_topics", away)
    reader = CatalogReader(load_settings())
    for _ in range(3):
        with pytest.raises(KafkaUnavailableError):
            reader.start(0.1)
    assert len(made) == 1
