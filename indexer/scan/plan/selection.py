"""From a request to what is read: spans of entry keys, the slices that can hold them, and what a snapshot
must be like. Pure.

The endpoint knows, from `control`, the newest number that every slice of an index holds (Published) and the
timestamp behind each recent number. A request may demand more: a session that has seen a later number,
offsets that must be included, a bound on staleness. `unmet` says what is still missing, in words that end in
an error or an explanation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import msgspec

from indexer.scan.peer.messages import TIP, ReadSpan
from indexer.scan.plan.spatial import place_condition
from indexer.scan.plan.tokens import Saw, tip_of
from indexer.scan.request.request import AtLeast, Moment, OffsetAndEpoch, Question, SpanRequest
from keytide.catalog.history import History
from keytide.catalog.partitioning import Partitioning, slices_of_cells
from keytide.collation import Span, encode_key, merge_spans
from keytide.definition.expression import Expression, Predicate
from keytide.definition.index import IndexDefinition
from keytide.definition.spatial.meaning import query_shape
from keytide.errors import CallerError, HistoryChangedError, invariant
from keytide.model.timestamp import Timestamp, smallest
from keytide.structure import (
    DEFAULT_STRUCTURE,
    ORDERED_INSTEAD,
    NotOrderedError,
    Selected,
    Structure,
    WantedKeys,
    structure_of,
)
from keytide.structure.spatial import GEOGRAPHIC_SRID


@dataclass(frozen=True, slots=True)
class Shape:
    """What selections and rows need to know of an index, worked out once.

    Attributes:
        structure: what its entries are found by.
        partition_part: the key part that the partitioning goes by, None when it is none of them.
        includes: whether it has included columns.
        partitioning: how its entries fall to slices.
        place: the expression of a spatial index's key, in the system `srid`; None of other indexes.
        by_cell: whether it is partitioned by RANGE(cell).
    """

    structure: Structure
    partition_part: int | None
    slices: int
    includes: bool
    partitioning: Partitioning
    place: Expression | None = None
    srid: int = GEOGRAPHIC_SRID
    by_cell: bool = False

    @classmethod
    def of(cls, definition: IndexDefinition, splits: Sequence[bytes] = ()) -> Shape:
        """That of an index; `splits` are those of its record."""
        return cls(
            definition.structure,
            definition.partition_part,
            definition.slices,
            bool(definition.include),
            Partitioning.of(definition, splits),
            definition.keys[0].expression if definition.structure_type.has_places else None,
            definition.system,
            definition.partitioned_by_cell,
        )

    @property
    def parts(self) -> int:
        """How many parts its key has."""
        return self.structure.parts

    @property
    def descending(self) -> tuple[bool, ...]:
        """Its directions, empty when every part ascends."""
        return self.structure.descending

    @property
    def keys_apart(self) -> bool:
        """Whether no key lies in two slices: the partitioning goes by a part of it, and by nothing else."""
        return self.partition_part is not None and not self.partitioning.spread

    @property
    def in_order(self) -> int:
        """How the order of slices is that of the keys in them: 1 the same, -1 the other way round, 0 none."""
        ordered = self.structure.ordered and self.partition_part == 0
        return self.partitioning.in_order if ordered else 0


@dataclass(frozen=True, slots=True)
class Selection:
    """What is read of an index, from whatever moment.

    Attributes:
        spans: disjoint stretches of entry keys, ascending; none when nothing can be selected.
        slices: which can hold entries of them.
        filter: entries for which this is true, of those in the spans; None for all. Slices test it.
        keys: of the entries in the spans those that have one of these canonical keys; empty for all. Slices
            test that, too.
        distinct: one entry per key: the first one in the direction of the read.
        in_order: as `Shape.in_order`.
    """

    spans: Sequence[Span]
    slices: Sequence[int]
    filter: Predicate | None = None
    distinct: bool = False
    in_order: int = 0
    keys: tuple[bytes, ...] = ()


def selection_of(
    question: Question,
    shape: Shape,
    max_spans: int,
    *,
    distinct: bool = False,
    reverse: bool = False,
    nearest: bool = False,
) -> Selection:
    """What a request selects.

    Args:
        max_spans: how many `spans` a request may give.
        nearest: it is answered by so many of the nearest as it says; else it may not say that.

    Raises:
        CallerError (422): too many spans, more key parts than the index has, a value that no key can hold, a
            place that is none, or a slice that the index does not have.
        NotOrderedError: what only an ordered structure answers.
        NotSpatialError: what only a spatial index answers.
    """
    if question.spans is not None and len(question.spans) > max_spans:
        raise CallerError(
            f"{len(question.spans)} spans were given, this server takes {max_spans}",
            status=422,
            problem_type="too-many-spans",
            next_step="ask in several requests at one held snapshot, or raise scan.max_spans",
        )
    if (distinct or reverse) and not shape.structure.ordered:
        what = "distinct" if distinct else "reverse"
        instead = "Group by the key for each once (GROUP BY, or aggregate), or ask" if distinct else "Ask"
        raise NotOrderedError(
            f"a {shape.structure.name} index has no order of keys, so it does not answer `{what}`",
            next_step=f"{instead} {ORDERED_INSTEAD}.",
        )
    if question.nearest is not None and not nearest:
        raise CallerError(
            "so many of the nearest are one JSON answer of a scan, and nothing else",
            status=422,
            problem_type="invalid-request",
            next_step="leave `limit` out of `near`, and say `metres`",
        )
    condition = None
    if question.place_member is not None:
        condition = place_condition(question, shape.place, shape.srid)
    if condition is not None:
        with query_shape(condition) as asked:
            chosen = [shape.structure.selected(WantedKeys(region=asked))]
    else:
        chosen = _selected(question, shape)
    spans = merge_spans(span for one in chosen for span in one.spans)
    keys = () if any(not one.keys for one in chosen) else tuple(key for one in chosen for key in one.keys)
    slices = slices_of(question, shape, spans) if spans else ()
    return Selection(spans, slices, condition, distinct, shape.in_order if spans else 0, keys)


def sifts(tests: object, keys: Collection[bytes], highs: Iterable[bytes | None]) -> bool:
    """Whether a read may look at much and find little. Keys are sought where they lie, and only of more than
    there may be spans in the whole index.

    Args:
        tests: whatever else there is to test of entries.
        keys: as in `Selection`.
        highs: the ends of the spans.
    """
    return bool(tests) or (bool(keys) and None in highs)


def stretches(span: ReadSpan, after: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    """The spans of a read in the direction of the read, without what lies up to `after`."""
    for low, high in reversed(span.spans) if span.reverse else span.spans:
        if not after:
            yield low, high
        elif span.reverse:
            if low < after:
                yield low, after if high is None else min(high, after)
        elif high is None or after < high:
            yield max(low, after + b"\x00"), high


def filter_json(selection: Selection) -> bytes:
    """What slices are told to test of entries (JSON, as the metadata has predicates); b"" for nothing."""
    return b"" if selection.filter is None else msgspec.json.encode(selection.filter)


def _selected(question: Question, shape: Shape) -> list[Selected]:
    """What a request means, one for each stretch.

    Raises:
        CallerError (422): more parts than keys have, a value that none can hold, an order (NotOrderedError).
    """
    asked: Sequence[SpanRequest | Question] = (question,) if question.spans is None else question.spans
    return [shape.structure.selected(_wanted(one)) for one in asked]


def _wanted(one: SpanRequest | Question) -> WantedKeys:
    return WantedKeys(one.equals, one.prefix, one.low, one.high, one.inclusion)


def _values_of(one: SpanRequest | Question, shape: Shape) -> Span:
    """The canonical keys of a stretch, whatever the structure: what slices go by."""
    return structure_of(DEFAULT_STRUCTURE, shape.parts, shape.descending).selected(_wanted(one)).spans[0]


def slices_of(question: Question, shape: Shape, spans: Sequence[Span] = ()) -> Sequence[int]:
    """The slices that can hold entries of what is selected; of these only the `slices` that were asked for.
    Of HASH those of one partition per stretch that fixes the part that the partitioning goes by, else all. Of
    RANGE those that a stretch reaches, if it fixes the parts before that one. (Values were checked before.)

    Args:
        spans: what is read; of a spatial index by RANGE(cell) slices follow from them.

    Raises:
        CallerError (422): the index has no such slice.
    """
    stretches: Sequence[SpanRequest | Question] = (question,)
    if question.spans is not None:
        stretches = [one for one in question.spans if not _values_of(one, shape).empty]
    slices: Sequence[int]
    if shape.by_cell:
        slices = slices_of_cells(shape.partitioning, spans)
    elif shape.partition_part is None:
        slices = range(shape.slices)
    else:
        each = [_slices_of(one, shape, shape.partition_part) for one in stretches]
        found = each[0] if len(each) == 1 else set().union(*each)
        slices = range(shape.slices) if len(found) == shape.slices else tuple(sorted(found))
    if question.slices is None:
        return slices
    if max(question.slices, default=0) >= shape.slices:
        raise CallerError(
            f"the index has no slice {max(question.slices)}, it has {shape.slices}",
            status=422,
            problem_type="unknown-slice",
            next_step=f"name slices 0 to {shape.slices - 1}",
        )
    return tuple(sorted(set(slices).intersection(question.slices)))


def _slices_of(one: SpanRequest | Question, shape: Shape, fixed: int) -> range:
    """The slices that can hold entries of a stretch that is not empty.

    Args:
        fixed: the key part that the partitioning goes by.
    """
    rule = shape.partitioning
    if rule.ranged:
        before = _shared_parts(one, fixed, shape.descending)
        return range(shape.slices) if before is None else rule.slices_of_span(_values_of(one, shape), before)
    value = _shared_parts(one, fixed + 1, ())
    if value is None:
        return range(shape.slices)
    return rule.slices_of_value(value[len(_shared_parts(one, fixed, ()) or b"") :])


def slices_ahead(shape: Shape, after: bytes, reverse: bool) -> range:
    """The slices that can hold entries behind a place; all, if the order of slices is not that of entries."""
    if not after or not shape.in_order:
        return range(shape.slices)
    return shape.partitioning.slices_of_span(Span(b"", after) if reverse else Span(after), b"")


def _shared_parts(one: SpanRequest | Question, count: int, descending: Sequence[bool]) -> bytes | None:
    """The first `count` key parts, encoded, of all entries of a stretch; None when it does not fix them."""
    if one.equals is not None:
        bounds: tuple[list[Any], ...] = (one.equals,)
    else:
        bounds = (one.low or [], one.high or [])
    if any(len(bound) < count for bound in bounds):
        return None
    # They must be the same in both bounds as keys, and not as Python compares.
    first, *others = (encode_key(bound[:count], descending) for bound in bounds)
    return None if any(other != first for other in others) else first


# --- from which moment ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stamp:
    """A snapshot as `control` announced it.

    Attributes:
        fresh_at: from when its staleness counts (ms), 0 when unknown.
        tip: of newest states, the earliest timestamp that covers all that were read (`timestamp` is the
            latest that all of them cover).
    """

    number: int
    incarnation: int
    timestamp: Timestamp
    fresh_at: int
    tip: Timestamp | None = None

    def of(self, timestamps: Sequence[Timestamp]) -> Stamp:
        """With the timestamp of its slices: the same in all unless it is of newest states (Untorn)."""
        if not timestamps:
            return self
        first, own = timestamps[0], self.timestamp
        if self.number == TIP:
            return replace(self, timestamp=smallest(timestamps), tip=reduce(Timestamp.merge_max, timestamps))
        together = all(first.same_cut(other) for other in timestamps)
        invariant(together, "Untorn", lambda: f"snapshot {self.number} has several timestamps: {timestamps}")
        told = not own.places or first.same_cut(own)
        invariant(told, "Untorn", lambda: f"snapshot {self.number} is {own}, its slices have {first}")
        return self if own.places else replace(self, timestamp=first)


def check_branches(at_least: AtLeast, history: History) -> None:
    """Raise `HistoryChangedError` if a demanded place, named with its leader epoch, was lost."""
    for partition, place in (at_least or {}).items():
        if isinstance(place, OffsetAndEpoch) and history.on_lost_branch(partition, place.offset, place.epoch):
            raise HistoryChangedError(
                f"the source lost records: offset {place.offset} of partition {partition} under epoch "
                f"{place.epoch} is not in it any more",
                next_step="write again what is missing, and demand the offset that it then gets",
            )


def demanded_offsets(moment: Moment, partitions: int) -> dict[int, int]:
    """`at_least` as plain next offsets.

    Raises:
        CallerError (422): a partition that the keyspace does not have, or anything of a tip scan.
    """
    wanted: dict[int, int] = {}
    for partition, place in (moment.at_least or {}).items():
        if not 0 <= partition < partitions:
            raise CallerError(
                f"the keyspace has no partition {partition}, it has {partitions}",
                status=422,
                problem_type="unknown-partition",
                next_step=f"name partitions 0 to {partitions - 1}",
            )
        wanted[partition] = place if isinstance(place, int) else place.offset
    if moment.consistency == "tip" and (wanted or moment.max_staleness_ms is not None):
        raise CallerError(
            "at_least and max_staleness_ms need consistency `stable`: a tip scan agrees on nothing",
            status=422,
            problem_type="invalid-request",
        )
    return wanted


def unmet(
    stamp: Stamp | None,
    moment: Moment,
    seen: Saw | None,
    at_least: dict[int, int],
    incarnation: int,
    now: int,
) -> str | None:
    """What `stamp` lacks for a request, or None when it satisfies it.

    Args:
        stamp: the newest published snapshot; None when there is none.
        seen: what the session has seen of this keyspace.
        at_least: from `demanded_offsets`.
        incarnation: the keyspace's, as the metadata has it (R32).
        now: milliseconds.
    """
    if stamp is None:
        return "a snapshot that all slices hold"
    if stamp.incarnation != incarnation:
        return f"a snapshot since the rollback (newest: {stamp.number}, from before it)"
    if seen is not None and (stamp.incarnation, stamp.number) < (seen[1], seen[0]):
        return f"snapshot {seen[0]}, which the session has seen (newest: {stamp.number})"
    tip = tip_of(seen) if seen is not None else None
    if tip is not None and not stamp.timestamp.covers(tip[1]):
        return "a snapshot that covers the newest states that the session has seen"
    for partition, offset in at_least.items():
        if stamp.timestamp.offset(partition) < offset:
            return f"offset {offset} of partition {partition} (indexed: {stamp.timestamp.offset(partition)})"
    if moment.max_staleness_ms is not None and now - stamp.fresh_at > moment.max_staleness_ms:
        age = f"{now - stamp.fresh_at} ms" if stamp.fresh_at else "of unknown age"
        return f"a snapshot at most {moment.max_staleness_ms} ms old (newest: {age})"
    return None
