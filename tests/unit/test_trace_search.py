"""How `keytide trace` finds a record and the messages that tell of it, in topics that have far more, and what
it says where there is none. Kafka is a list here."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Message
from msgspec.structs import replace

from deploy.trace import command
from deploy.trace.command import TraceOptions, as_json, settings_of, wanted
from deploy.trace.entries import IndexEntries, ProjectedEntry, entries_of, looked_for
from deploy.trace.logs import LogSearch
from deploy.trace.rendering import show, verdict
from deploy.trace.source import FoundRecord, newest_record
from deploy.trace.stretches import Stretch, Stretches
from keytide.catalog.catalog import Catalog
from keytide.catalog.history import History
from keytide.catalog.records import IndexRecord, IndexState, KeyspaceRecord
from keytide.client import Client
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.errors import CallerError, RetryableError
from keytide.kafka.admin import TopicInfo
from keytide.model.topics import Topics
from keytide.trace.hops import TraceInput, trace
from keytide.trace.records import DocumentTrace, RecordOutcome, SourceRecord
from keytide.wire.messages import Acknowledged, Leading, Segment, encode
from keytide.wire.messages import Message as Said
from tests.unit.test_trace import INDEX, KEYSPACE, Told, batch, progress, published, segment, stamp

TOPICS = Topics("c")
STEP_MS = 10


class Kept(NamedTuple):
    """A record in a topic, with the methods of a client's message."""

    number: int
    place: int
    time: int
    name: bytes | None
    content: bytes | None

    def partition(self) -> int:
        return self.number

    def offset(self) -> int:
        return self.place

    def timestamp(self) -> tuple[int, int]:
        return 1, self.time

    def key(self) -> bytes | None:
        return self.name

    def value(self) -> bytes | None:
        return self.content


class KeptTopics(Stretches):
    """Topics in memory.

    Attributes:
        looked_at: how many records were read.
    """

    def __init__(self) -> None:
        self._topics: dict[tuple[str, int], list[Kept]] = {}
        self.looked_at = 0

    def add(self, topic: str, number: int, at: int, value: Said | bytes | None, key: bytes = b"") -> int:
        records = self._topics.setdefault((topic, number), [])
        offset = records[-1].place + 1 if records else 0
        data = value if isinstance(value, bytes | None) else encode(value)
        records.append(Kept(number, offset, at, key, data))
        return offset

    def forget(self, topic: str, number: int, before: int) -> None:
        """Kafka has deleted what lies before an offset."""
        key = (topic, number)
        self._topics[key] = [one for one in self._topics[key] if one.place >= before]

    def topic(self, name: str) -> TopicInfo | None:
        count = sum(topic == name for topic, _ in self._topics)
        return TopicInfo(name, "T", count) if count else None

    def bounds(self, topic: str, partitions: int = 1) -> dict[int, Stretch]:
        kept = {number: self._topics[topic, number] for number in range(partitions)}
        return {number: (some[0].place, some[-1].place + 1) for number, some in kept.items()}

    def at(self, topic: str, moment: int, bounds: Mapping[int, Stretch]) -> dict[int, int]:
        return {
            number: next((one.place for one in self._topics[topic, number] if one.time >= moment), high)
            for number, (_, high) in bounds.items()
        }

    def read(self, topic: str, stretches: Mapping[int, Stretch]) -> Iterator[Message]:
        for number, (low, high) in stretches.items():
            for one in self._topics[topic, number]:
                if low <= one.place < high:
                    self.looked_at += 1
                    yield one  # type: ignore[misc] # it has what is asked of a message


def silent(_: str) -> None:
    """Nobody looks."""


def source(partitions: int = 3, records: int = 5_000) -> KeptTopics:
    """A topic of which nobody looks for a record."""
    kept = KeptTopics()
    for number in range(partitions):
        for one in range(records):
            kept.add(KEYSPACE, number, one, b"{}", f"k{one}".encode())
    return kept


def find(kept: KeptTopics, document: str, partition: int | None = None, last: int = 100_000) -> FoundRecord:
    return newest_record(kept, KEYSPACE, document, partition, last, silent)


# --- the record -------------------------------------------------------------------------------------------


def test_the_newest_record_is_found_from_the_end() -> None:
    kept = source()
    kept.add(KEYSPACE, 1, 7_000, b'{"n": 1}', b"u1")
    kept.add(KEYSPACE, 1, 7_001, b'{"n": 22}', b"u1")
    kept.add(KEYSPACE, 1, 7_002, b"{}", b"u2")
    found = find(kept, "u1")
    assert found.record == SourceRecord(1, 5_001, 7_001, "create", False, 9)
    assert (found.key, found.value) == (b"u1", b'{"n": 22}')
    assert kept.looked_at < 7_000  # of 15,003: not the whole of it


def test_one_that_is_far_back_is_found_as_well() -> None:
    kept = KeptTopics()
    kept.add(KEYSPACE, 0, 1, None, b"old")
    for one in range(30_000):
        kept.add(KEYSPACE, 0, one, b"{}", b"other")
    assert find(kept, "old").record == SourceRecord(0, 0, 1, "create", True, 0)
    with pytest.raises(CallerError, match="in the last 20,000 offsets of 1 partitions") as caught:
        find(kept, "old", last=20_000)
    assert "--last" in caught.value.next_step
    assert caught.value.problem_type == "document-not-found"


def test_an_id_that_is_nowhere_is_looked_for_in_all_that_is_kept() -> None:
    kept = source(2, 100)
    with pytest.raises(CallerError, match="what Kafka keeps") as caught:
        find(kept, "nobody")
    assert "--last" not in caught.value.next_step
    assert kept.looked_at == 200


def test_an_id_in_two_partitions_is_asked_back() -> None:
    kept = source(3, 100)
    kept.add(KEYSPACE, 0, 1, b"{}", b"twice")
    kept.add(KEYSPACE, 2, 1, b"{}", b"twice")
    with pytest.raises(
        CallerError, match=r"partition 0 \(offset 100\), partition 2 \(offset 100\)"
    ) as caught:
        find(kept, "twice")
    assert "--partition" in caught.value.next_step
    assert find(kept, "twice", partition=2).record.partition == 2


@pytest.mark.parametrize(
    ("topic", "partition", "said"), [("nothing", None, "no topic nothing"), (KEYSPACE, 3, "no partition 3")]
)
def test_what_is_not_there_is_told(topic: str, partition: int | None, said: str) -> None:
    with pytest.raises(CallerError, match=said):
        newest_record(source(3, 1), topic, "u1", partition, 10, silent)


# --- the messages -----------------------------------------------------------------------------------------


def here(offset: int) -> Segment:
    """Where the projector stands, and no more."""
    return Segment(0, 0, offset, offset)


class Scene:
    """A cluster that has gone on for a while: message after message, ten milliseconds apart. The record at
    offset 41 comes behind `before` timestamps, and `after` ones follow."""

    def __init__(self, before: int = 3_000, after: int = 3_000) -> None:
        self.kept = KeptTopics()
        self.time = 1_000_000
        for _ in range(before):
            self.tick(30)
        self.sent = self.time
        for number in range(INDEX.slices):
            self.kept.add(TOPICS.mutations(INDEX.id), number, self.sent, batch(segment(), number=number))
        self.record = SourceRecord(0, 41, self.sent - 5, "create", False, 20)
        self.number = self.tick(43)
        self.stamped = self.time + 2
        for _ in range(after):
            self.tick(60)

    def tick(self, offset: int) -> int:
        """Everybody says once where they are; the number of the timestamp."""
        self.time += STEP_MS
        add = self.kept.add
        for number in range(INDEX.slices):
            add(TOPICS.mutations(INDEX.id), number, self.time, batch(here(offset), number=number))
        add(TOPICS.reports, 0, self.time + 1, progress(offset))
        stamped = add(TOPICS.control, 0, self.time + 2, stamp(offset))
        for number, node in enumerate(("n1", "n2")):
            held = Acknowledged(node, KEYSPACE, 0, stamped, [(INDEX.id, number)])
            add(TOPICS.reports, 0, self.time + 3, held)
        add(TOPICS.control, 0, self.time + 4, Leading(1, "c1", self.time))
        add(TOPICS.control, 0, self.time + 5, published({INDEX.id: stamped}))
        return stamped

    def traced(self) -> DocumentTrace:
        self.kept.looked_at, now = 0, self.time + 50
        search = LogSearch(self.kept, TOPICS, KEYSPACE, History(), self.record, silent, now)
        control = search.control([INDEX])
        reports = search.reports(control, [INDEX])
        queues = search.queues(control, reports, [INDEX])
        known = TraceInput(self.record, [INDEX], control, reports, queues, {}, now)
        return trace(KEYSPACE, "u41", known)

    def states(self) -> str:
        return " ".join(one.state for one in self.traced().indexes[0].hops)

    def expected(self) -> list[int]:
        at = self.stamped
        return [self.sent, at - 1, at, at + 1, at + 3]


def test_every_hop_is_found_in_the_middle_of_long_topics() -> None:
    scene = Scene()
    told = scene.traced()
    assert told.number == scene.number
    assert [one.at for one in told.indexes[0].hops] == scene.expected()
    assert {one.state for one in told.indexes[0].hops} == {"done"}
    assert told.indexes[0].published == scene.number + 9_000  # what is published now
    assert scene.kept.looked_at < 8_000  # of 48,000


@pytest.mark.parametrize("late", [-10_000_000, 30_000, 10_000_000])
def test_whatever_the_clock_of_the_producer_says(late: int) -> None:
    scene = Scene()
    scene.record = replace(scene.record, time=scene.record.time + late)
    assert [one.at for one in scene.traced().indexes[0].hops] == scene.expected()


def test_the_last_record_and_the_first() -> None:
    assert Scene(after=0).states() == "done done done done done"
    assert Scene(before=0).states() == "done done done done done"  # topics are kept from their beginning


def test_what_kafka_has_deleted_is_past() -> None:
    scene = Scene()
    for number in range(INDEX.slices):
        scene.kept.forget(TOPICS.mutations(INDEX.id), number, 4_000)
    assert scene.states() == "past done done done done"
    scene.kept.forget(TOPICS.reports, 0, 12_000)
    assert scene.states() == "past past done past done"
    scene.kept.forget(TOPICS.control, 0, scene.number + 1)
    told = scene.traced()
    assert " ".join(one.state for one in told.indexes[0].hops) == "past past past past past"
    assert told.indexes[0].shown is True


def test_what_has_not_come_yet_is_waited_for() -> None:
    scene = Scene(after=0)
    scene.record = replace(scene.record, offset=200, time=scene.time)
    told = scene.traced()
    hops = {one.hop: one for one in told.indexes[0].hops}
    assert {one.state for one in hops.values()} == {"waiting"}
    assert "is at offset 43 of partition 0, 158 records behind" in hops["projected"].waiting_for
    assert f"the newest, {scene.number:,}, is at offset 43" in hops["stamped"].waiting_for
    assert (told.number, told.indexes[0].shown, told.indexes[0].published) == (None, False, scene.number)


# --- what it means to indexes -----------------------------------------------------------------------------


def record_of(name: str, statement: str, state: IndexState = "READY") -> IndexRecord:
    parsed = parse_statement(statement)
    assert isinstance(parsed, CreateIndex)
    return IndexRecord(f"{name}-1", parsed.definition, state, 1, [["n1"]] * 8, None, 0)


CITY = record_of("by_city", "CREATE INDEX by_city ON people (city)")
TAG = record_of("by_tag", "CREATE INDEX by_tag ON people (UNNEST(tags))")
PLACE = record_of("by_place", "CREATE INDEX by_place ON people USING spatial (place)")
BUILDING = record_of("by_n", "CREATE INDEX by_n ON people (city, n)", "BUILDING")


def found(value: object) -> FoundRecord:
    data = value if isinstance(value, bytes | None) else json.dumps(value).encode()
    return FoundRecord(SourceRecord(0, 41, 0, "create", value is None, 0), b"u1", data)


def test_a_record_is_projected_as_projectors_do() -> None:
    document = {"city": "Rome", "tags": ["x", "y"], "place": {"type": "Point", "coordinates": [1, 2]}}
    entries = entries_of(found(document), [CITY, TAG, PLACE, BUILDING])
    assert entries[CITY.id] == IndexEntries(RecordOutcome("entries", 1), [ProjectedEntry(["Rome"])])
    assert [one.key for one in entries[TAG.id].entries] == [["x"], ["y"]]
    assert "no key to look for" in entries[PLACE.id].entries[0].why
    assert "MISSING" in entries[BUILDING.id].entries[0].why
    assert entries_of(found(b"no JSON"), [CITY])[CITY.id].outcome.reason == "not-json"
    assert entries_of(found(None), [CITY])[CITY.id].outcome.kind == "deleted"
    assert entries_of(found({}), [CITY])[CITY.id].outcome == RecordOutcome(
        "left-out", reason="leading-key-missing"
    )


class Row(NamedTuple):
    id: str


class Scans:
    """A client that knows the answer to each key."""

    def __init__(self, answers: Mapping[str, list[Row]]) -> None:
        self._answers = answers

    def __enter__(self) -> Scans:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def scan(self, index: str, *, equals: list[Any], limit: int, **_: Any) -> Iterator[Row]:
        assert index == "by_city"
        return itertools.islice(self._answers[equals[0]], limit)


def test_entries_are_looked_for_by_their_keys() -> None:
    (told,) = Told().all_said().trace().indexes
    keys = [
        ProjectedEntry(["a"]),
        ProjectedEntry(["b"]),
        ProjectedEntry(["c"]),
        ProjectedEntry(["d"], why="w"),
    ]
    known = {told.id: IndexEntries(RecordOutcome("entries", 4), keys)}
    answers = {
        "a": [*[Row("u2")] * 999, Row("u1"), Row("u3")],
        "b": [Row("u2")] * 1_000,
        "c": [Row("u2")] * 1_001,
    }
    client: Any = Scans(answers)
    shown = looked_for(known, [told], "u1", lambda: client)[told.id]
    assert [one.shown for one in shown.entries] == [True, False, None, None]
    assert "more than 1,000 documents" in shown.entries[2].why

    def nobody() -> Client:
        raise RetryableError("no node answers")

    silence = looked_for(known, [told], "u1", nobody)[told.id]
    assert (silence.trouble, silence.entries) == ("no node answers", keys)


# --- words ------------------------------------------------------------------------------------------------


def dictionary() -> Catalog:
    catalog = Catalog()
    for keyspace in ("people", "orders"):
        catalog.put(f"keyspace/{keyspace}", KeyspaceRecord(keyspace, "T", 4, 1))
    for one in (CITY, TAG, replace(BUILDING, state="DROPPING")):
        catalog.put(f"index/{one.id}", one)
    return catalog


def test_a_keyspace_or_an_index_is_meant() -> None:
    catalog = dictionary()
    everything = wanted(catalog, "people", "")
    assert (everything[0], [one.id for one in everything[1]]) == ("people", [CITY.id, TAG.id])
    for name, index in (("people", "by_city"), ("by_city", ""), ("people", "by_city-1")):
        keyspace, records = wanted(catalog, name, index)
        assert (keyspace, [one.id for one in records]) == ("people", [CITY.id])
    assert wanted(catalog, "orders", "") == ("orders", [])
    catalog.put("index/by_tag-1", replace(TAG, replaced_by="by_tag-9"))
    assert wanted(catalog, "people", "")[1] == [CITY]
    assert wanted(catalog, "people", "by_tag-1")[1][0].id == TAG.id
    with pytest.raises(CallerError, match="no keyspace nothing") as caught:
        wanted(catalog, "nothing", "")
    assert "people" in caught.value.next_step
    with pytest.raises(CallerError, match="keyspace people has no index by_n"):
        wanted(catalog, "people", "by_n")


def options(folder: Path, **given: Any) -> TraceOptions:
    said: dict[str, Any] = {"kafka": "", "cluster": "", "url": None, **given}
    return TraceOptions("people", "u1", "", None, 10, data_dir=folder, as_json=False, **said)


def test_kafka_is_that_of_the_folder_unless_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYTIDE_KAFKA__BOOTSTRAP", "kafka.example:9093")
    monkeypatch.setenv("KEYTIDE_CLUSTER", "said")
    monkeypatch.delenv("KEYTIDE_URL", raising=False)
    monkeypatch.setattr(command, "running_state", lambda *_: {"kafka": "127.0.0.1:1", "cluster": "local"})
    local = settings_of(options(tmp_path))
    assert (local.kafka.bootstrap, local.cluster) == ("127.0.0.1:1", "local")
    named = settings_of(options(tmp_path, kafka="127.0.0.1:2"))
    assert (named.kafka.bootstrap, named.cluster) == ("127.0.0.1:2", "said")
    assert settings_of(options(tmp_path, url="http://127.0.0.1:3")).cluster == "said"
    monkeypatch.setattr(command, "running_state", lambda *_: None)
    remote = settings_of(options(tmp_path, cluster="other"))
    assert (remote.kafka.bootstrap, remote.cluster) == ("kafka.example:9093", "other")


def test_a_kafka_that_does_not_answer_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "give_up_s", lambda: 1.0)
    with pytest.raises(RetryableError) as caught:
        command.run(options(tmp_path, kafka="127.0.0.1:1", cluster="c"))
    assert "Kafka at 127.0.0.1:1 for the cluster c: name others with --kafka" in caught.value.next_step


def test_what_people_see(capsys: pytest.CaptureFixture[str]) -> None:
    told = Told().all_said()
    entries = IndexEntries(RecordOutcome("entries", 1), [ProjectedEntry(["Boston"], True)], "")
    show(told.trace(), {INDEX.id: entries})
    seen = " ".join(capsys.readouterr().out.split())
    assert "partition 0 at offset 41" in seen
    assert "1 entry; stable scans include this record (they read snapshot 502)" in seen
    assert '["Boston"]: in stable scans' in seen
    assert "waits" not in seen
    told.control.published.clear()
    show(told.trace(), {INDEX.id: replace(entries, trouble="no node answers")})
    seen = " ".join(capsys.readouterr().out.split())
    assert "published waits: number 501 or a later one" in seen
    assert "what to do: `keytide index show by_city`" in seen
    assert "scans could not be asked: no node answers" in seen


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (RecordOutcome("entries", 2), "2 entries; stable scans include"),
        (RecordOutcome("deleted"), "it deletes the document: no entries; stable scans include"),
        (RecordOutcome("skipped", 0, "not-json", "x"), "skipped: not-json: x (a line in the skip ledger); "),
        (RecordOutcome("left-out", 0, "where-not-true"), "the definition leaves it out (where-not-true); "),
        (RecordOutcome("unknown"), "what it means to the index is not known; "),
    ],
)
def test_what_a_record_means_is_said_in_words(outcome: RecordOutcome, words: str) -> None:
    (index,) = Told().all_said().trace().indexes
    assert words in verdict(replace(index, outcome=outcome))
    assert "do not yet include" in verdict(replace(index, shown=False))
    assert "cannot be said" in verdict(replace(index, shown=None))
    assert "the index is FAILED: because" in verdict(replace(index, state="FAILED", reason="because"))


def test_json_has_the_entries_beside_the_hops() -> None:
    told = Told().all_said().trace()
    entries = IndexEntries(RecordOutcome("entries", 1), [ProjectedEntry(["Boston"], True)], "")
    document = json.loads(json.dumps(as_json(told, {INDEX.id: entries})))
    (index,) = document["indexes"]
    assert index["entries"] == [{"key": ["Boston"], "shown": True, "why": ""}]
    assert [one["hop"] for one in index["hops"]][-1] == "published"
    assert (document["number"], document["record"]["offset"]) == (501, 41)
