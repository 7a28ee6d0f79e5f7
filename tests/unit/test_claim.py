"""A coordinator that Kafka shuts out: it writes nothing before it has seen that nobody else leads."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from coordinator.election import claim
from coordinator.election.claim import FencedError, MetadataWriter
from keytide.catalog.catalog import Catalog
from keytide.catalog.records import TermRecord, record_key
from keytide.kafka.admin import KafkaUnavailableError
from keytide.kafka.fenced_writer import ShutOutError
from keytide.settings.settings import load_settings

RECORD = TermRecord(1, "here", 0, 3)


class Writer:
    """As `FencedWriter`; the first write finds that another one has fenced.

    Attributes:
        done: what was asked of it.
    """

    def __init__(self, done: list[str]) -> None:
        self.shut_out = False
        self._done = done
        self._fenced = False

    def fence(self) -> None:
        self._done.append("fence")
        self._fenced, self.shut_out = True, False

    def write(self, records: Sequence[tuple[str, bytes | None]]) -> int:
        if not self._fenced:
            self.shut_out = True
            raise ShutOutError("fenced")
        self._done.append("write")
        return 7


@pytest.mark.parametrize("term", [1, 2])
@pytest.mark.parametrize("fails", [(), (0,), (1,), (0, 1, 2)])
def test_it_looks_until_it_has_seen_and_before_it_writes(
    monkeypatch: pytest.MonkeyPatch, term: int, fails: tuple[int, ...]
) -> None:
    """Kafka is away for some of its looks; another one claims a term, or none does, after its first."""
    done: list[str] = []

    def read(_: object) -> Catalog:
        number = done.count("look") + done.count("away")
        if number in fails:
            done.append("away")
            raise KafkaUnavailableError("no answer")
        found = Catalog()
        found.put(record_key(RECORD), TermRecord(term if "fence" in done else 1, "there", 0, 3))
        done.append("look")
        return found

    monkeypatch.setattr(claim, "FencedWriter", lambda *_: Writer(done))
    monkeypatch.setattr(claim, "read_catalog", read)
    monkeypatch.setattr(claim, "_RETRY_PAUSE_S", 0.0)
    writer = MetadataWriter(load_settings())
    writer.term = 1
    if term == 1:
        assert writer.write([("term", RECORD)]) == 7
        assert done[-2:] == ["look", "write"]
    else:
        with pytest.raises(FencedError):
            writer.write([("term", RECORD)])
        assert "write" not in done
