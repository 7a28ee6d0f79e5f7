"""The simulated source topic: what producers write, what Kafka keeps of it, and what is lost of it.

Every record is an element of a log, every log that ever was is kept: a truncated one goes to `lost`. A record
knows the entries that it stands for, made by the real projection once per distinct document.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Final, NamedTuple, Protocol, TypeVar

import xxhash
from msgspec.structs import replace

from coordinator.core.source_status import SourceStatus
from keytide.catalog.partitioning import Partitioning
from keytide.catalog.records import IndexRecord
from keytide.definition.index import IndexDefinition
from keytide.definition.render import render_expression
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.model.log_history import LogHistory, PartitionHistory
from keytide.model.timestamp import Place
from keytide.structure import Structure, StructureName, structure_of
from projector.core.projection import KeyspacePlan, SourceBatch, project
from router.core import slices_of
from tests.simulation import geometries
from tests.simulation.chance import Chance
from tests.statements import encode_splits

KEYSPACE = "ks"
PARTITIONS = 2
SLICES = 2
"""Of an index, where nothing else is said."""
SPREAD = "SUBPARTITION BY HASH(id) SLICES (1, 2)"
"""A partition of one slice, and one of two."""
IDS = tuple(b"doc%d" % number for number in range(6))
HOT = 3
"""Most writes go to the first few ids; what goes wrong with the others is not soon written over."""
LETTERS = "abcde"
SPLIT = "c"
SAMPLED = "c"
"""The index whose splits are not given, in histories by RANGE."""
CUTS: Final[dict[str, tuple[object, ...]]] = {
    "UNNEST(k)": (SPLIT, "b", "e", "d"),
    "v": (2, 1, 3),
    "id": ("doc3", "doc1"),
    "cell": geometries.CUTS,
}
"""By what an index is parted by RANGE, the splits that a sample finds: the first of them, as many as it
takes."""
HASHES = {docid: xxhash.xxh3_64_intdigest(docid) for docid in IDS}
RETENTION_MS = 1 << 40

Row = tuple[bytes, bytes]
_structure: StructureName = "btree"
_spread = False


class Cached(Protocol):
    """A function that keeps what it has made."""

    def cache_clear(self) -> None: ...


CachedT = TypeVar("CachedT", bound=Cached)
_kept: list[Cached] = []


@contextmanager
def shaped(structure: StructureName = "btree", spread: bool = False) -> Iterator[None]:
    """All indexes have this structure, and (if they are not by RANGE) all slices are one partition."""
    global _structure, _spread
    before = _structure, _spread
    _structure, _spread = structure, spread
    _forget()
    try:
        yield
    finally:
        _structure, _spread = before
        _forget()


def kept(made: CachedT) -> CachedT:
    """Have what a function keeps forgotten when the structure changes: it is made of entries."""
    _kept.append(made)
    return made


def _forget() -> None:
    for made in _kept:
        made.cache_clear()


def spatial() -> bool:
    """Whether indexes are of geometries: a document has one, in the place of letters, and may have several
    cells."""
    return _structure == "spatial"


def structure() -> Structure:
    """That of the indexes."""
    return structure_of(_structure, 1)


@kept
@cache
def sampled_splits(by: str, count: int) -> tuple[bytes, ...]:
    """What a sample finds.

    Args:
        by: the partitioning expression.
        count: of splits; where there are not so many values between, the first ones come twice.
    """
    return tuple(sorted(encode_splits((CUTS[by] * count)[:count])))


def splits_of(definition: IndexDefinition) -> tuple[bytes, ...]:
    """Where the partitions of an index part, given or found."""
    if not definition.samples_splits:
        return definition.encoded_splits
    return sampled_splits(render_expression(definition.partition), definition.partitions - 1)


def statement_of(name: str, ranged: bool = False, spread: bool = False) -> str:
    """CREATE INDEX.

    Args:
        ranged: by RANGE; of the index `SAMPLED` the build finds the splits.
        spread: with partitions of one slice and of several.
    """
    if spatial():
        return geometries.statement_of(
            name, KEYSPACE, ranged, name != SAMPLED, SLICES, SPREAD if spread else ""
        )
    given = "" if name == SAMPLED else f" SPLIT AT ('{SPLIT}')"
    partition = f"PARTITION BY RANGE(UNNEST(k)){given} " if ranged else ""
    options = f"slices={SLICES}"
    if spread:
        partition = f"{partition or 'PARTITION BY HASH(UNNEST(k)) '}{SPREAD} "
        options = "replicas=0"
    elif _spread and not ranged:
        partition = f"PARTITION BY HASH(UNNEST(k)) SUBPARTITION BY HASH(id) SLICES {SLICES} "
        options = "partitions=1"
    using = f"USING {_structure} (UNNEST(k))"
    return f"CREATE INDEX {name} ON {KEYSPACE} {using} INCLUDE (v) {partition}WITH ({options})"


@kept
@cache
def creation(name: str, ranged: bool = False, spread: bool = False, deferred: bool = False) -> CreateIndex:
    """CREATE INDEX, parsed (once: that takes as long as ten steps of a history)."""
    text = statement_of(name, ranged, spread)
    statement = parse_statement(text.replace("WITH (", "WITH (defer_build=true, ") if deferred else text)
    assert isinstance(statement, CreateIndex)
    return statement


def definition(name: str, replicas: int = 0, ranged: bool = False, spread: bool = False) -> IndexDefinition:
    """The definition that all indexes of a history share, until they are altered."""
    statement = creation(name, ranged, spread)
    return replace(statement.definition, replicas=replicas)


class Layout:
    """How an index parts its entries into slices. Indexes that do it alike have one object.

    Attributes:
        definition: of one of them.
        rule: which slice an entry lies in.
        slices: how many there are.
    """

    __slots__ = ("definition", "rule", "slices")

    def __init__(self, definition: IndexDefinition, rule: Partitioning) -> None:
        self.definition = definition
        self.rule = rule
        self.slices = rule.slices

    def hears(self, docid: bytes, number: int) -> bool:
        """Whether its id lets a slice hold a document (R16)."""
        end = 0
        for count in self.rule.id_shares:
            begin, end = end, end + count
            if number < end:
                return HASHES[docid] % count == number - begin
        raise IndexError(number)


class _Layouts:
    """Those that were met."""

    def __init__(self) -> None:
        self._by_statement: dict[tuple[str, tuple[bytes, ...]], Layout] = {}
        self._by_rule: dict[tuple[str, Partitioning], Layout] = {}

    def of(self, definition: IndexDefinition, splits: tuple[bytes, ...]) -> Layout:
        known = self._by_statement.get((definition.statement, splits))
        if known is None:
            rule = Partitioning.of(definition, splits)
            made = Layout(definition, rule)
            known = self._by_rule.setdefault((render_expression(definition.partition), rule), made)
            self._by_statement[definition.statement, splits] = known
        return known

    def cache_clear(self) -> None:
        self._by_statement.clear()
        self._by_rule.clear()


_layouts = kept(_Layouts())


@kept
@cache
def layout(ranged: bool = False, spread: bool = False) -> Layout:
    """Of the indexes of a history, until they are altered."""
    made = definition("x", ranged=ranged, spread=spread)
    return _layouts.of(made, splits_of(made))


def layout_of(index: IndexRecord) -> Layout:
    """Of an index that is built, or is being built."""
    return _layouts.of(index.definition, index.splits)


def canonical(stored: bytes, value: bytes) -> bytes:
    """The canonical key of an entry of any index."""
    return definition("x").structure.canonical(stored, value)


@kept
@lru_cache(4_096)
def in_full(entry_key: bytes, value: bytes) -> Row:
    """An entry as a scan shows it: with its canonical key, whatever the structure."""
    return definition("x").structure.in_full(entry_key, value)


@kept
@lru_cache(4_096)
def rows_shown(rows: tuple[tuple[Row, ...], ...]) -> int:
    """How many rows scans show of a document's entries, by slice: one of a geometry, whatever its cells."""
    if not spatial():
        return sum(map(len, rows))
    return len({in_full(*row) for some in rows for row in some})


class Projection(NamedTuple):
    """What a document stands for.

    Attributes:
        puts: by slice, (canonical key, value).
        skip: by slice, (reason, detail) of its line in the ledger.
    """

    puts: tuple[tuple[Row, ...], ...]
    skip: tuple[tuple[str, str] | None, ...]


@kept
@lru_cache(4_096)
def projection(docid: bytes, document: bytes | None, of: Layout) -> Projection:
    """The real projection and routing of one document."""
    batch = project(SourceBatch(0, 0, 0, 1, [0], [docid], [document], [0]), projection_plan(of))
    entries = batch.indexes["x"]
    puts: list[list[Row]] = [[] for _ in range(of.slices)]
    values = entries.values or [b""] * len(entries.keys)
    hashes = batch.hashes[entries.ordinals]
    routes = slices_of(entries.partition_keys, of.rule, hashes).tolist() if entries.keys else []
    for route, key, value in zip(routes, entries.keys, values, strict=True):
        puts[route].append((key, value))
    skip: list[tuple[str, str] | None] = [None] * of.slices
    if not docid:
        return Projection(((),) * of.slices, tuple(skip))
    for one in entries.skips:
        skip[HASHES[docid] % of.slices] = (one.reason, one.detail)
    return Projection(tuple(map(tuple, puts)), tuple(skip))


@kept
@lru_cache(4_096)
def rows_of(docid: bytes, document: bytes | None, of: Layout) -> tuple[tuple[Row, ...], ...]:
    """The entries of a document: by slice, (entry key, value)."""
    return tuple(
        tuple((key + docid, value) for key, value in puts) for puts in projection(docid, document, of).puts
    )


@kept
@cache
def projection_plan(of: Layout) -> KeyspacePlan:
    """How an index with such a layout projects."""
    return KeyspacePlan([("x", of.definition)])


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """A record of the source.

    Attributes:
        document: its value; None is a tombstone.
        number: of the write, over all partitions and logs.
        layout: of the indexes of the history, until they are altered.
        made: what the document stands for there.
        rows: by slice there, (entry key, value).
    """

    partition: int
    offset: int
    epoch: int
    id: bytes
    document: bytes | None
    time: int
    number: int
    layout: Layout
    made: Projection
    rows: tuple[tuple[Row, ...], ...]

    def made_in(self, other: Layout) -> Projection:
        """What its document stands for in an index of some layout."""
        return self.made if other is self.layout else projection(self.id, self.document, other)

    def rows_in(self, other: Layout) -> tuple[tuple[Row, ...], ...]:
        """Its entries by slice of such an index."""
        return self.rows if other is self.layout else rows_of(self.id, self.document, other)

    def __repr__(self) -> str:
        text = "deleted" if self.document is None else self.document.decode()
        return f"{self.partition}/{self.offset} epoch {self.epoch} {self.id.decode()} {text}"


Fold = dict[bytes, Version]
"""Document id -> its newest version."""


class Log:
    """One source partition of one topic, as a branch of history.

    Attributes:
        records: every version that was ever written on this branch, compacted ones too.
        folds: by offset, the newest versions below it.
        alive: offsets that the cleaner has left.
        epochs: (leader epoch, where it begins).
        low: the first offset that is still there; below it the cleaner had left nothing.
    """

    def __init__(self, partition: int, topic_id: str) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.records: list[Version] = []
        self.folds: list[Fold] = [{}]
        self.alive: set[int] = set()
        self.epochs: list[tuple[int, int]] = [(0, 0)]
        self.low = 0

    @property
    def end(self) -> int:
        return len(self.records)

    @property
    def epoch(self) -> int:
        return self.epochs[-1][0]

    def append(self, version: Version) -> None:
        """A record; one without an id is a transaction's marker, which no consumer gets."""
        if version.id:
            self.alive.add(self.end)
            self.folds.append({**self.folds[-1], version.id: version})
        else:
            self.folds.append(self.folds[-1])
        self.records.append(version)

    def read(self, start: int, end: int) -> list[Version]:
        """What a consumer gets of [start, end) now."""
        alive = self.alive
        return [self.records[offset] for offset in range(start, end) if offset in alive]

    def elect(self) -> None:
        """Another leader, nothing lost."""
        epoch = self.epoch + 1
        if self.epochs[-1][1] == self.end:
            self.epochs.pop()
        self.epochs.append((epoch, self.end))

    def truncated(self, cut: int) -> Log:
        """The log after an unclean election that lost everything from `cut` on."""
        log = Log(self.partition, self.topic_id)
        log.records, log.folds = self.records[:cut], self.folds[: cut + 1]
        # (The other replica cleaned what it had a newer version of.)
        log.alive = {offset for offset in self.alive if offset < cut}
        log.alive |= {version.offset for version in log.folds[cut].values()}
        log.epochs = [one for one in self.epochs if one[1] < cut or one[1] == 0]
        log.epochs.append((self.epoch + 1, cut))
        log.low = min(self.low, cut)
        if len(log.epochs) > 1 and log.epochs[-2][1] == cut:
            del log.epochs[-2]
        return log

    def has(self, place: Place) -> bool:
        """Whether `place` may be on this branch: its epoch is that of the last record below it which could be
        read, or of a marker behind that."""
        if place.offset > self.end:
            return False
        if place.offset == 0 or place.epoch < 0:
            return True
        for offset in range(place.offset - 1, -1, -1):
            record = self.records[offset]
            if record.epoch <= place.epoch:
                return record.epoch == place.epoch
            if offset in self.alive:
                return False
        return False

    def history(self) -> PartitionHistory:
        """What Kafka says of it."""
        ends = [begin for _, begin in self.epochs[1:]] + [self.end]
        branches = tuple((epoch, end) for (epoch, _), end in zip(self.epochs, ends, strict=True))
        return PartitionHistory(self.low, self.end, self.epoch, branches, self.end)


@dataclass(slots=True)
class Source:
    """The source topic.

    Attributes:
        lost: logs that were truncated, or whose topic was deleted.
        layout: of indexes, until they are altered.
        kept_from: by partition, the first offset that retention has left.
    """

    topic_id: str = "topic-1"
    compacted: bool = False
    logs: list[Log] = field(default_factory=list)
    lost: list[Log] = field(default_factory=list)
    written: int = 0
    layout: Layout = field(default_factory=layout)
    kept_from: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))

    def __post_init__(self) -> None:
        self.logs = [Log(partition, self.topic_id) for partition in range(PARTITIONS)]

    def ends(self) -> dict[int, int]:
        return {log.partition: log.end for log in self.logs}

    def write(self, chance: Chance, now: int) -> Version:
        """A producer writes: an insert, update, move, delete, or something that cannot be indexed."""
        log = chance.pick(self.logs)
        if chance.below(12) == 0 and log.end:
            log.append(make_version(log, b"", None, now, self.written, self.layout))
            self.written += 1
            return log.records[-1]
        docid = IDS[chance.below(HOT)] if chance.happens(0.7) else chance.pick(IDS)
        log = self.logs[IDS.index(docid) % PARTITIONS]
        version = make_version(log, docid, _document(chance), now, self.written, self.layout)
        log.append(version)
        self.written += 1
        return version

    def clean(self, chance: Chance, limits: dict[int, int]) -> None:
        """Compaction removes one superseded version; `min.compaction.lag.ms` keeps it below what every
        projector has read (R27)."""
        log = chance.pick(self.logs)
        limit = limits[log.partition]
        below = sorted(offset for offset in log.alive if offset < limit)
        newest = {log.records[offset].id: offset for offset in below}
        superseded = [offset for offset in below if offset < newest[log.records[offset].id]]
        if superseded:
            log.alive.discard(chance.pick(superseded))
        if chance.below(3) == 0:
            log.low = max(log.low, next((offset for offset in range(limit) if offset in log.alive), limit))

    def retain(self, chance: Chance, limits: dict[int, int]) -> int | None:
        """Retention takes the oldest records of a partition, of those that every projector has read."""
        log = chance.pick(self.logs)
        begin, limit = self.kept_from[log.partition], limits[log.partition]
        if begin >= limit:
            return None
        self.kept_from[log.partition] = log.low = begin + 1 + chance.below(min(4, limit - begin))
        log.alive = {offset for offset in log.alive if offset >= log.low}
        return log.partition

    def truncate(self, chance: Chance, among: set[int]) -> int | None:
        """An unclean election: the last few records of a partition are gone."""
        log = chance.pick(self.logs)
        if log.end < 2 or log.partition not in among:
            return None
        cut = max(0, log.end - 1 - chance.below(5))
        self.lost.append(log)
        self.logs[log.partition] = log.truncated(cut)
        return log.partition

    def recreate(self) -> None:
        """The topic is deleted and made anew under its name."""
        self.lost += self.logs
        number = int(self.topic_id.rsplit("-", 1)[1])
        self.topic_id = f"topic-{number + 1}"
        self.logs = [Log(partition, self.topic_id) for partition in range(PARTITIONS)]

    def facts(self, now: int) -> SourceStatus:
        """What the coordinator's samples say. (Of the beginning they say what retention has left: where the
        cleaner has left nothing, nothing is missed.)"""
        ends = self.ends()
        return SourceStatus(
            KEYSPACE,
            self.topic_id,
            dict(self.kept_from),
            ends,
            dict(ends),
            self.compacted,
            RETENTION_MS,
            RETENTION_MS,
            now,
        )

    def history(self) -> LogHistory:
        """What Kafka says of its logs."""
        return LogHistory(self.topic_id, {log.partition: log.history() for log in self.logs})

    def history_before(self) -> LogHistory:
        """What the leaders say that were there before records were lost."""
        logs = {log.partition: log for log in [*self.logs, *self.lost] if log.topic_id == self.topic_id}
        return LogHistory(self.topic_id, {log.partition: log.history() for log in logs.values()})

    def branches(self, topic_id: str, partition: int, place: Place) -> list[Log]:
        """The logs that `place` may lie on: one, if its epoch is known."""
        now = self.logs[partition]
        logs = [now, *(log for log in reversed(self.lost) if log.partition == partition)]
        return [
            log
            for log in logs
            if (not topic_id or log.topic_id == topic_id)
            and (log.has(place) or (log is not now and self._ran_on(log, place)))
        ]

    def _ran_on(self, log: Log, place: Place) -> bool:
        """Whether `place` is the end of a lost log for a reader that has passed markers of the new one since,
        and cannot know it."""
        now = self.logs[log.partition]
        return (
            log.end < place.offset <= now.end
            and log.has(Place(log.end, place.epoch))
            and not now.read(log.end, place.offset)
        )


def make_version(
    log: Log, docid: bytes, document: bytes | None, now: int, number: int, of: Layout
) -> Version:
    made, rows = projection(docid, document, of), rows_of(docid, document, of)
    return Version(log.partition, log.end, log.epoch, docid, document, now, number, of, made, rows)


def _document(chance: Chance) -> bytes | None:
    kind = chance.below(100)
    if kind < 18:
        return None
    if kind < 24:
        return b"no json"
    if kind < 28:
        return b'{"v":1}'
    first = chance.below(len(LETTERS))
    letters = LETTERS[first]
    if chance.happens(0.4):
        letters += LETTERS[(first + 1 + chance.below(len(LETTERS) - 1)) % len(LETTERS)]
    return document_of(letters, chance.below(4))


def document_of(letters: str, v: int | None = None) -> bytes:
    """A document with these letters, or the geometry that stands for them."""
    if spatial():
        keys = geometries.geometry_of_letters(letters)
    else:
        keys = "[" + ",".join(f'"{letter}"' for letter in letters) + "]"
    return f'{{"k":{keys},"v":{v}}}'.encode() if v is not None else f'{{"k":{keys}}}'.encode()
