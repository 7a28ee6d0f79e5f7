"""The journal of a build's driver, in Kafka: who may write it, what is taken over, what is removed (R54)."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from keytide.catalog.catalog import Catalog
from keytide.catalog.records import BuildRecord, record_key
from keytide.errors import RetryableError
from keytide.kafka.admin import KafkaUnavailableError
from keytide.kafka.fenced_writer import ShutOutError
from keytide.model.timestamp import Timestamp
from keytide.settings.settings import load_settings
from streaming.core.sizing import SizedBatch
from streaming.drivers import journal
from streaming.drivers.failures import StoppedError
from streaming.drivers.journal import EarlierJournal, Journal, KafkaJournal
from streaming.drivers.outage import Outage

FIRST = SizedBatch(0, {0: 0}, {0: 9})


class Topic:
    """What is in it, who may write, and what befalls the next writes.

    Attributes:
        mishaps: one for each write to come: "away", "lost" (fenced, and nothing written), "unheard" (fenced,
            and written).
    """

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}
        self.holders: dict[str, object] = {}
        self.mishaps: list[str] = []


class Writer:
    """As `FencedWriter`, of one topic."""

    def __init__(self, topic: Topic, name: str) -> None:
        self._topic = topic
        self._name = name
        self.shut_out = False

    def fence(self) -> None:
        self._topic.holders[self._name] = self
        self.shut_out = False

    def write(self, records: Sequence[tuple[str, bytes | None]]) -> int:
        mishap = self._topic.mishaps.pop(0) if self._topic.mishaps else ""
        if mishap == "away":
            raise KafkaUnavailableError("no answer")
        if mishap == "lost" or self._topic.holders.get(self._name) is not self:
            self.shut_out = True
            raise ShutOutError("fenced")
        for key, value in records:
            if value is None:
                self._topic.found.pop(key, None)
            else:
                self._topic.found[key] = value
        if mishap == "unheard":
            self.shut_out = True
            raise ShutOutError("fenced")
        return -1

    def hand_over(self) -> None:
        """Any thread may."""


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    made = Topic()
    monkeypatch.setattr(journal, "FencedWriter", lambda _, __, name, ___: Writer(made, name))
    monkeypatch.setattr(journal, "read_journals", lambda _: dict(made.found))
    monkeypatch.setattr(journal, "RETRY_S", 0.0)
    return made


def kept_by(
    folder: Path,
    build: str = "b8",
    catalog: Catalog | None = None,
    begin: Mapping[int, int] | None = None,
    stopping: threading.Event | None = None,
) -> KafkaJournal:
    """As one start of the build's driver has it."""
    earlier = EarlierJournal(folder, lambda _: begin)
    made = load_settings(data_dir=str(folder))
    return KafkaJournal(made, build, lambda: catalog or Catalog(), earlier, stopping or threading.Event())


def test_the_next_driver_goes_on_on_another_machine(topic: Topic, tmp_path: Path) -> None:
    one = kept_by(tmp_path / "here")
    assert one.load() == Journal()
    one.keep(Journal(first_read_at=7, begin={0: 0}, newest=FIRST))
    found = kept_by(tmp_path / "there").load()
    assert (found.first_read_at, found.begin, found.pending) == (7, {0: 0}, FIRST)


def test_a_driver_keeps_nothing_once_the_next_one_has_read_and_written(topic: Topic, tmp_path: Path) -> None:
    one, two = kept_by(tmp_path), kept_by(tmp_path)
    one.load()
    one.keep(Journal(size=1))
    two.load()
    two.keep(Journal(size=2))
    with pytest.raises(RetryableError, match="another driver works on build b8"):
        one.keep(Journal(size=3))
    assert kept_by(tmp_path).load().size == 2


def test_of_two_that_write_at_once_the_later_one_finds_out(topic: Topic, tmp_path: Path) -> None:
    """The earlier one may fence anew while nobody has written: then it is the later one that is behind."""
    one, two = kept_by(tmp_path), kept_by(tmp_path)
    one.load()
    two.load()
    one.keep(Journal(size=1))
    with pytest.raises(RetryableError, match="another driver"):
        two.keep(Journal(size=2))
    assert kept_by(tmp_path).load().size == 1


@pytest.mark.parametrize("mishap", ["away", "lost", "unheard"])
def test_what_befalls_one_write_ends_no_driver(topic: Topic, tmp_path: Path, mishap: str) -> None:
    one = kept_by(tmp_path)
    one.load()
    one.keep(Journal(size=1))
    topic.mishaps = [mishap, "lost"]
    one.keep(Journal(size=2))
    one.keep(Journal(size=3))
    assert kept_by(tmp_path).load().size == 3


def test_a_driver_that_waits_for_kafka_hears_that_it_is_to_end(topic: Topic, tmp_path: Path) -> None:
    stopping = threading.Event()
    one = kept_by(tmp_path, stopping=stopping)
    one.load()
    stopping.set()
    topic.mishaps = ["away"]
    with pytest.raises(StoppedError):
        one.keep(Journal(size=1))


def test_a_kafka_that_stays_away_is_given_up(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = kept_by(tmp_path)
    one.load()
    monkeypatch.setattr(journal, "Outage", lambda _: Outage(0.0))
    topic.mishaps = ["away"]
    with pytest.raises(KafkaUnavailableError):
        one.keep(Journal(size=1))


def test_what_a_release_before_has_left_is_taken_over_once(topic: Topic, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    left = Journal(first_read_at=7, newest=FIRST, size=50)
    (tmp_path / "progress.json").write_bytes(msgspec.json.encode(left))
    found = kept_by(tmp_path, begin={0: 3}).load()
    assert (found.begin, found.pending, found.size) == ({0: 3}, FIRST, 50)
    assert not list(tmp_path.iterdir()), "that release would begin again, were it to come back"
    assert kept_by(tmp_path / "there").load() == found


def test_half_of_what_a_release_before_has_left_is_nothing(topic: Topic, tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_bytes(msgspec.json.encode(Journal(first_read_at=7, newest=FIRST)))
    assert kept_by(tmp_path).load() == Journal(), "its checkpoint is not here"


def test_journals_of_builds_that_are_over_go(topic: Topic, tmp_path: Path) -> None:
    catalog = Catalog()
    for name, state in (("b6", "BACKFILL"), ("b7", "READY"), ("b8", "BACKFILL")):
        record = BuildRecord(name, "people", [], "BACKFILL", Timestamp(), 1)
        record = msgspec.structs.replace(record, state=state)
        catalog.put(record_key(record), record)
    topic.found = dict.fromkeys(("b5", "b6", "b7", "b9"), b"{}")
    one = kept_by(tmp_path, catalog=catalog)
    one.load()
    one.keep(Journal())
    assert sorted(topic.found) == ["b6", "b8", "b9"], "of b9 this driver has not heard yet"
