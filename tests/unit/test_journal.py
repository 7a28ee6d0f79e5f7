"""The journal of a build's driver, in Kafka: who may write it, what is taken over, what is removed (R54)."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException

from keytide.catalog.catalog import Catalog
from keytide.catalog.records import BuildRecord, record_key
from keytide.errors import KeytideError, RetryableError
from keytide.kafka import fenced_writer
from keytide.kafka.admin import KafkaUnavailableError
from keytide.kafka.clients import Producer
from keytide.kafka.fenced_writer import FencedWriter, ShutOutError, TransactionsRefusedError
from keytide.model.timestamp import Timestamp
from keytide.settings.settings import load_settings
from keytide.wire.entry_sums import NO_ENTRIES, EntrySums
from streaming.backfill.course import wait_out
from streaming.core import micro_batches as core
from streaming.core.sizing import SizedBatch
from streaming.drivers import failures, kafka_journal
from streaming.drivers.failures import StoppedError
from streaming.drivers.journal import DisplacedError, FencedJournal, Journal, JournalRecord
from streaming.drivers.kafka_journal import EarlierJournal, read_journals
from streaming.drivers.outage import Outage

FIRST = SizedBatch(0, {0: 0}, {0: 9})


def test_sums_count_once_and_nothing_behind_a_gap_does() -> None:
    """Of a micro-batch that is run again, by whatever driver, and of one that another release has done."""
    one, other = [EntrySums(1, 5, 7), EntrySums(2, 6, 8)], [EntrySums(3, 1, 1), NO_ENTRIES]
    journal = Journal(newest=FIRST)
    assert journal.projected(2) is None, "it is not done"
    journal.newest = SizedBatch(0, {0: 0}, {0: 9}, done=True)
    assert journal.projected(2) is None, "a release that sums up nothing has done it"
    journal.add_sums(1, other)
    assert (journal.sums, journal.summed) == ([], 0)
    journal.add_sums(0, None)
    journal.add_sums(0, one)
    journal.add_sums(0, one)
    assert journal.projected(2) == one
    assert journal.projected(3) is None
    journal.add_sums(1, other)
    assert journal.projected(2) is None, "the second is not done"
    journal.newest = SizedBatch(1, {0: 9}, {0: 12}, done=True)
    again = msgspec.json.decode(msgspec.json.encode(journal), type=Journal)
    assert again.sums == [EntrySums(4, 6, 8), EntrySums(2, 6, 8)]
    assert again.projected(2) is None, "something may have been removed"
    largest = (1 << 64) - 1
    again.add_sums(2, [EntrySums(0, largest, largest)] * 2)
    assert [one.content for one in again.sums] == [5, 5]
    assert msgspec.json.decode(msgspec.json.encode(again), type=Journal) == again
    assert Journal(nothing_to_read={0: 4}).projected(2) == [NO_ENTRIES] * 2
    before = msgspec.json.decode(b'{"first_read_at":1,"table_read":true}', type=Journal)
    assert before.projected(2) is None, "of the release before"


class Topic:
    """What is in it, who may write, and what befalls the next requests.

    Attributes:
        mishaps: one for each request to come: "away" (not begun), "lost" (fenced, and nothing written),
            "unheard" (fenced, and written), "" for none.
    """

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}
        self.holder: object = None
        self.mishaps: list[str] = []
        self.requests: list[str] = []

    def asked(self, what: str) -> str:
        self.requests.append(what)
        mishap = self.mishaps.pop(0) if self.mishaps else ""
        if mishap == "away":
            raise KafkaUnavailableError("no answer")
        return mishap


class Access:
    """As one driver writes it (`JournalTopic`)."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self.shut_out = False

    def fence(self) -> None:
        self._topic.asked("fence")
        self._topic.holder = self
        self.shut_out = False

    def write(self, records: Sequence[tuple[str, bytes | None]]) -> int:
        mishap = self._topic.asked("write")
        if mishap == "lost" or self._topic.holder is not self:
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
        return 5

    def read(self, end: int) -> dict[str, bytes]:
        self._topic.asked("read")
        assert end == 5
        return dict(self._topic.found)

    def hand_over(self) -> None:
        """Any thread may."""


@pytest.fixture
def topic() -> Topic:
    return Topic()


def driver(
    topic: Topic,
    number: int,
    folder: Path = Path("/nowhere"),
    *,
    term: int = 1,
    begin: Mapping[int, int] | None = None,
    over: Iterable[str] = (),
    stopping: bool = False,
    away_s: float = 60.0,
) -> FencedJournal:
    """As the so-manieth start of the build's driver by the leader of a term has it."""
    return FencedJournal(
        Access(topic),
        "b8",
        (term, number),
        EarlierJournal(folder, lambda _: begin),
        lambda found: sorted(set(found) & set(over)),
        away_s,
        wait=lambda _: stopping,
        now=lambda: 0.0,
    )


def size(topic: Topic) -> int:
    """Of the journal that the next driver finds."""
    return driver(topic, 0, term=99).load().size


# --- one driver after the other -----------------------------------------------------------------------------


def test_the_next_driver_goes_on_on_another_machine(topic: Topic, tmp_path: Path) -> None:
    one = driver(topic, 1, tmp_path / "here")
    assert one.load() == Journal()
    one.keep(Journal(first_read_at=7, begin={0: 0}, newest=FIRST))
    found = driver(topic, 1, tmp_path / "there", term=2).load()
    assert (found.first_read_at, found.begin, found.pending) == (7, {0: 0}, FIRST)


@pytest.mark.parametrize("mishap", ["away", "lost", "unheard"])
@pytest.mark.parametrize("befalls", range(6))
def test_what_befalls_one_request_ends_no_driver(topic: Topic, mishap: str, befalls: int) -> None:
    """A write, and all that follows when Kafka shuts a driver out that has no other one."""
    one = driver(topic, 1)
    one.load()
    one.keep(Journal(size=1))
    topic.mishaps = ["lost", *[""] * befalls, mishap]
    one.keep(Journal(size=2))
    one.keep(Journal(size=3))
    topic.mishaps = []
    assert size(topic) == 3


def test_a_driver_that_waits_for_kafka_hears_that_it_is_to_end(topic: Topic) -> None:
    one = driver(topic, 1, stopping=True)
    one.load()
    topic.mishaps = ["away"]
    with pytest.raises(StoppedError):
        one.keep(Journal(size=1))


def test_a_kafka_that_stays_away_is_given_up(topic: Topic) -> None:
    one = driver(topic, 1, away_s=0.0)
    one.load()
    topic.mishaps = ["away"]
    with pytest.raises(KafkaUnavailableError):
        one.keep(Journal(size=1))


@pytest.mark.parametrize("befalls", range(4))
def test_who_cannot_load_now_waits_in_its_own_way(topic: Topic, befalls: int) -> None:
    topic.mishaps = [*[""] * befalls, "away"]
    with pytest.raises(KafkaUnavailableError):
        driver(topic, 1).load()


# --- two at once --------------------------------------------------------------------------------------------


def test_a_driver_keeps_nothing_once_the_next_one_has_read(topic: Topic) -> None:
    """However often it tries, and though the next one has not come to write anything of its own."""
    one, two = driver(topic, 1), driver(topic, 1, term=2)
    one.load()
    one.keep(Journal(size=1))
    assert two.load().size == 1
    for _ in range(3):
        with pytest.raises(DisplacedError):
            one.keep(Journal(size=9))
    two.keep(Journal(size=2))
    assert size(topic) == 2


def test_the_later_one_goes_on_whoever_fences_last(topic: Topic) -> None:
    one, two = driver(topic, 1), driver(topic, 2)
    one.load()
    two.load()
    with pytest.raises(DisplacedError):
        one.keep(Journal(size=9))
    two.keep(Journal(size=2))
    assert size(topic) == 2


def test_a_driver_that_a_leader_starts_that_is_none_any_more_disturbs_nobody(topic: Topic) -> None:
    """It fences the later one out, and reads that it is not wanted; the later one goes on."""
    two = driver(topic, 1, term=2)
    two.load()
    two.keep(Journal(size=2))
    with pytest.raises(DisplacedError):
        driver(topic, 7).load()
    two.keep(Journal(size=3))
    assert size(topic) == 3


@pytest.mark.parametrize("at", range(4))
def test_two_that_load_at_once(topic: Topic, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The earlier one fences at any point of the later one's loading: that one alone goes on."""
    one, two = driver(topic, 1), driver(topic, 1, term=2)
    asked, left = topic.asked, [at]

    def beside(what: str) -> str:
        left[0] -= 1
        if left[0] < 0:
            monkeypatch.setattr(topic, "asked", asked)
            try:
                one.load()
            except DisplacedError:
                assert at == 3
        return asked(what)

    monkeypatch.setattr(topic, "asked", beside)
    for _ in range(2):
        try:
            two.load()
            break
        except RetryableError:  # (it was fenced while it read)
            two = driver(topic, 1, term=2)
    two.keep(Journal(size=2))
    with pytest.raises(DisplacedError):
        one.keep(Journal(size=9))
    assert size(topic) == 2


@pytest.mark.parametrize("befalls", range(1, 4))
def test_who_is_shut_out_looks_until_it_has_seen(topic: Topic, befalls: int) -> None:
    """Kafka goes away while an earlier driver fences or looks: it does not write before it has seen."""
    one, two = driver(topic, 1), driver(topic, 2)
    one.load()
    two.load()
    two.keep(Journal(size=2))
    topic.mishaps = [*[""] * befalls, "away"]
    with pytest.raises(DisplacedError):
        one.keep(Journal(size=9))
    assert size(topic) == 2


def test_a_driver_that_is_displaced_is_not_tried_again() -> None:
    async def wait(_: float) -> None:
        raise AssertionError("it waits")

    with pytest.raises(DisplacedError):
        wait_out(DisplacedError(), Outage(60.0), 0, "b8", 0.0, wait).send(None)


# --- what is there ------------------------------------------------------------------------------------------


def test_what_a_release_before_has_left_is_taken_over_once(topic: Topic, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    left = Journal(first_read_at=7, newest=FIRST, size=50)
    (tmp_path / "progress.json").write_bytes(msgspec.json.encode(left))
    found = driver(topic, 1, tmp_path, begin={0: 3}).load()
    assert (found.begin, found.pending, found.size) == ({0: 3}, FIRST, 50)
    assert not list(tmp_path.iterdir()), "that release would begin again, were it to come back"
    assert driver(topic, 2, tmp_path / "there").load() == found


def test_half_of_what_a_release_before_has_left_is_nothing(topic: Topic, tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_bytes(msgspec.json.encode(Journal(first_read_at=7, newest=FIRST)))
    assert driver(topic, 1, tmp_path).load() == Journal(), "its checkpoint is not here"


def test_a_driver_of_a_release_before_that_died_in_its_first_seconds_has_sent_nothing(
    topic: Topic, tmp_path: Path
) -> None:
    (tmp_path / "progress.json").write_bytes(msgspec.json.encode(Journal(first_read_at=7)))
    found = driver(topic, 1, tmp_path).load()
    build = BuildRecord("b8", "people", [], "BACKFILL", Timestamp(), 1)
    build = msgspec.structs.replace(build, first_read_at=7)
    assert not core.forgotten(build, found.first_read_at), "it goes on"


def test_journals_of_builds_that_are_over_go(topic: Topic) -> None:
    topic.found = dict.fromkeys(("b5", "b6", "b7", "b9"), b"{}")
    driver(topic, 1, over=("b5", "b7")).load()
    assert sorted(topic.found) == ["b6", "b8", "b9"]


def test_which_builds_are_over() -> None:
    catalog = Catalog()
    for name, state in (("b6", "BACKFILL"), ("b7", "READY"), ("b8", "BACKFILL")):
        record = BuildRecord(name, "people", [], "BACKFILL", Timestamp(), 1)
        record = msgspec.structs.replace(record, state=state)
        catalog.put(record_key(record), record)
    over = {name: core.over(catalog, name, "b8") for name in ("b5", "b6", "b7", "b9")}
    assert over == {"b5": True, "b6": False, "b7": True, "b9": False}, "of b9 it has not heard yet"


def test_what_is_no_journal_is_none(topic: Topic) -> None:
    topic.found["b8"] = b"something else"
    assert driver(topic, 1).load() == Journal()
    assert msgspec.json.decode(topic.found["b8"], type=JournalRecord).attempt == (1, 1)


class Record:
    def __init__(self, key: bytes | None, value: bytes | None) -> None:
        self._key, self._value = key, value

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value


class Reader:
    """Gives one record after the other, then nothing."""

    def __init__(self, records: list[Record]) -> None:
        self._records = records
        self.positions: dict[int, int] = {}

    def poll(self, _: float) -> list[Record]:
        if not self._records:
            return []
        self.positions[0] = self.positions.get(0, 0) + 1
        return [self._records.pop(0)]

    def close(self) -> None: ...


def test_what_others_have_written_into_the_topic_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [
        Record(b"b7", b"seven"),
        *(Record(key, b"?") for key in (None, b"", b"u5", b"b", b"b7x", b"\xff", b"end")),
        Record(b"b8", b"eight"),
        Record(b"b8", None),
        Record(b"b10", b"ten"),
    ]
    count = len(records)
    monkeypatch.setattr(kafka_journal, "TopicReader", lambda *_, **__: Reader(records))
    assert read_journals(load_settings(), count) == {"b7": b"seven", "b10": b"ten"}


def test_a_broker_that_does_not_have_all_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_journal, "TopicReader", lambda *_, **__: Reader([Record(b"b8", b"old")]))
    monkeypatch.setattr(kafka_journal, "REQUEST_TIMEOUT_S", 0.05)
    with pytest.raises(KafkaUnavailableError, match="was not read to offset 2"):
        read_journals(load_settings(), 2)


def test_a_writer_fences_as_often_as_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read after a fence may fail; then it fences again, with all that is real but the broker."""

    def made(*_: Any, **more: Any) -> Producer:
        told = {name.replace("_", "."): value for name, value in more.items()}
        mock = {"bootstrap.servers": "", "test.mock.num.brokers": 1, "log_level": 0}
        return Producer({**mock, **told, "transactional.id": "kt-build-b8"})

    monkeypatch.setattr(fenced_writer, "producer", made)
    writer = FencedWriter(load_settings(), "kt.builds", "kt-build-b8", threading.Event())
    for _ in range(3):
        writer.fence()
        assert not writer.shut_out


# --- access -------------------------------------------------------------------------------------------------


class RefusedProducer:
    """Kafka refuses it, or is away."""

    def __init__(self, code: int) -> None:
        self._code = code

    def init_transactions(self, _: float) -> None:
        raise KafkaException(KafkaError(self._code))


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, TransactionsRefusedError),
        (KafkaError._TIMED_OUT, KafkaUnavailableError),
    ],
)
def test_who_may_not_write_is_told_so(
    monkeypatch: pytest.MonkeyPatch, code: int, error: type[KeytideError]
) -> None:
    def made(*_: Any, **__: Any) -> RefusedProducer:
        return RefusedProducer(code)

    monkeypatch.setattr(fenced_writer, "producer", made)
    writer = FencedWriter(load_settings(), "kt.builds", "kt-build-b8", threading.Event())
    with pytest.raises(error) as told:
        writer.fence()
    failure = failures.diagnose(told.value)
    assert failure.away == (error is KafkaUnavailableError)
    assert not failure.never, "it goes on when it is allowed"
    assert ("kt-build-b8" in failure.message) == (error is TransactionsRefusedError)
