"""A slice's partial aggregates: blocks of entries in, groups with accumulators out. Pure.

Theory of operation
===================
Groups by leading key parts (or by none) are runs of adjacent entries: a block is cut at their ends, found by
bisection, and each run goes to its group as a whole. When the groups' order is the index's own, forwards or
backwards, groups are finished one after the other, and a slice that has as many as are wanted reads no
further (`SliceAggregate.streams`). Other groups are found entry by entry, in a dictionary.

A group is known by the code words of its values. It is shown as the first of its entries in key order has
them, where 5 and 5.0 are one group.

Groups, and distinct values, are what takes memory. They are limited in number, and weighed when they are new:
each may be as long as a document, and whoever adds entries stops where it is enough (`SliceAggregate.size`).
So a group keeps of its first entry what it is known and shown by, and none of the included columns.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import msgspec

from indexer.scan.aggregate.accumulators import Accumulator, State, Wants
from indexer.scan.aggregate.columns import (
    AggregateColumn,
    EntryReader,
    EntryRun,
    ExpressionColumn,
    KeyColumn,
    columns_of,
    filtered,
)
from indexer.scan.aggregate.request import AggregationPlan
from indexer.scan.local.filtering import Bound
from indexer.view import DoubtfulReadError
from keytide.collation import encode_key, key_forms, skip_key, successor
from keytide.collation.layout import INVERTED
from keytide.definition.binding import Binding, Needs
from keytide.definition.index import IndexDefinition
from keytide.errors import CallerError
from keytide.query.plan.grouping import runs_backwards


class TooManyGroupsError(CallerError):
    """More groups (or distinct values) than one answer may have, or larger ones."""

    problem_type = "too-many-groups"
    status = 422


class GroupState(msgspec.Struct, frozen=True, array_like=True):
    """A group on its way between nodes.

    Attributes:
        key: code words of the values that it is grouped by, ascending.
        forms: how the first entry writes their numbers.
        entry: entry key of the first entry.
        entries: how many entries it has.
        states: one per operand of the plan.
    """

    key: bytes
    forms: bytes
    entry: bytes
    entries: int
    states: list[State]


class _Group:
    """A group while it grows; `key`, `forms`, `entry` as in `GroupState`, of its first entry in key order."""

    __slots__ = ("accumulators", "entries", "entry", "forms", "key")

    def __init__(self, wants: Iterable[Wants]) -> None:
        self.key = self.forms = self.entry = b""
        self.entries = 0
        self.accumulators = [Accumulator(one) for one in wants]


def wants_of(plan: AggregationPlan) -> list[Wants]:
    """What is to be accumulated of each operand."""
    wanted: list[set[str]] = [set() for _ in plan.operands]
    for function in plan.functions:
        if function.operand >= 0:
            wanted[function.operand].add("distinct" if function.distinct else function.function)
    return [
        Wants(bool(one & {"sum", "avg"}), bool(one & {"min", "max"}), "distinct" in one) for one in wanted
    ]


def shared_parts(ordinals: Sequence[int | None]) -> int | None:
    """How many leading key parts groups go by, in whatever order; None when they go by anything else.

    Args:
        ordinals: of what they go by, the key part that it is, None when it is none.
    """
    parts = set(ordinals)
    return len(parts) if parts == set(range(len(parts))) else None


class SliceAggregate:
    """Aggregates the entries of one slice, block by block.

    Args:
        definition: of the index.
        plan: what to work out.
        tested: entries for which this is true; None for all.
        reverse: groups are asked for in descending order.
        wanted: groups that are enough, if they come in order; None for all.
        max_groups: groups, and distinct values, that may be held.

    Attributes:
        backwards: blocks are to be read from the end of the index.
        streams: groups come in the order that is asked for.
        size: bytes of keys and values that are held.
    """

    def __init__(
        self,
        definition: IndexDefinition,
        plan: AggregationPlan,
        tested: Bound | None,
        *,
        reverse: bool = False,
        wanted: int | None = None,
        max_groups: int,
    ) -> None:
        binding = Binding(definition)
        self._definition = definition
        self._descending = definition.descending
        self._wants = wants_of(plan)
        ordered = definition.structure.ordered
        backwards = runs_backwards(plan.groups, definition, reverse)
        self.streams = backwards is not None
        self.backwards = bool(backwards)
        self._enough = wanted if self.streams else None
        self._max_groups = max_groups
        self._values = [binding.value(node) for node in plan.groups]
        self._parts = [binding.part(node) if ordered else None for node in plan.groups]
        self._shared = shared_parts(self._parts)
        self._plain_parts = [part for part in self._parts if part is not None]
        self._columns: list[AggregateColumn] = []
        needs = Needs()
        for node, wants in zip(plan.operands, self._wants, strict=True):
            ordinal = binding.part(node) if ordered else None
            if ordinal is None:
                needs |= binding.needs(node)
                self._columns.append(ExpressionColumn(binding.value(node)))
            else:
                self._columns.append(KeyColumn(ordinal, self._descending, wants))
        of_groups = Needs()
        for node in plan.groups:
            of_groups |= binding.needs(node)
        self._test = None if tested is None else tested.test
        if tested is not None:
            needs |= tested.needs
        if len(self._plain_parts) < len(self._parts):
            needs |= of_groups
        self._reads = (
            tested is not None
            or len(self._plain_parts) < len(self._parts)
            or any(isinstance(column, ExpressionColumn) for column in self._columns)
        )
        self._reader = EntryReader(definition, needs)
        self._first_reader = EntryReader(definition, of_groups)
        self._groups: dict[bytes, _Group] = {}
        self._distinct = 0
        self.size = 0

    def add(self, rows: Sequence[tuple[bytes, bytes]]) -> bool:
        """Add a block of entries, in the order of the read; returns whether more are wanted.

        Raises:
            TooManyGroupsError: there are more groups or distinct values than may be.
            NotIndexableError: a value to group by has no place in the order.
            DoubtfulReadError: the entries are in no order.
        """
        keys, values = columns_of(rows)
        if self.backwards:
            keys.reverse()
            values.reverse()
        if not all(map(operator.lt, keys, keys[1:])):  # groups are found by bisection
            raise DoubtfulReadError("entries are out of order")
        read = self._reader.read(keys, values) if self._reads else []
        stretch = EntryRun(keys, values, read, 0)
        if self._test is not None:
            stretch = filtered(stretch, self._test)
        if not stretch.keys:
            return True
        if self._shared is None:
            return self._add_scattered(stretch)
        return self._add_runs(stretch, self._shared)

    def groups(self) -> list[GroupState]:
        """The groups so far, in no order."""
        return [
            GroupState(one.key, one.forms, one.entry, one.entries, [each.pack() for each in one.accumulators])
            for one in self._groups.values()
        ]

    # --- runs of adjacent entries -------------------------------------------------

    def _add_runs(self, stretch: EntryRun, shared: int) -> bool:
        runs = list(self._runs(stretch.keys, shared))
        if self.backwards:
            runs.reverse()
        for begin, end, word in runs:
            group = self._groups.get(word)
            if group is None:
                if self._enough is not None and len(self._groups) > self._enough:
                    return False  # one more than is wanted tells that there are more
                group = self._new(word, stretch, begin)
            self._feed(group, stretch.part(begin, end, shared))
        return True

    def _runs(self, keys: list[bytes], shared: int) -> Iterable[tuple[int, int, bytes]]:
        """(begin, end, the bytes of their shared parts) of the runs in a block."""
        begin, count = 0, len(keys)
        if not shared:
            yield 0, count, b""
            return
        while begin < count:
            key = keys[begin]
            word = key[: skip_key(key, shared, self._descending)]
            if keys[-1].startswith(word):
                end = count
            elif not keys[begin + 1].startswith(word):
                end = begin + 1
            else:
                end = bisect_left(keys, successor(word), begin + 2)
            yield begin, end, word
            begin = end

    # --- groups by anything else --------------------------------------------------

    def _add_scattered(self, stretch: EntryRun) -> bool:
        places: dict[bytes, list[int]] = {}
        if len(self._plain_parts) == len(self._parts):
            words: Iterable[bytes] = map(self._word, stretch.keys)
        else:
            words = (encode_key([value(*read) for value in self._values]) for read in stretch.read)
        for at, word in enumerate(words):
            found = places.get(word)
            if found is None:
                places[word] = [at]
            else:
                found.append(at)
        for word, chosen in places.items():
            group = self._groups.get(word)
            if group is None:
                group = self._new(word, stretch, chosen[0])
            self._feed(group, stretch.pick(chosen))
        return True

    def _word(self, entry: bytes) -> bytes:
        """The code words of the key parts that are grouped by."""
        found = b""
        for ordinal in self._plain_parts:
            begin = skip_key(entry, ordinal, self._descending)
            code = entry[begin : skip_key(entry, ordinal + 1, self._descending)]
            inverted = bool(self._descending) and self._descending[ordinal]
            found += code.translate(INVERTED) if inverted else code
        return found

    # --- both ---------------------------------------------------------------------

    def _new(self, word: bytes, stretch: EntryRun, at: int) -> _Group:
        if len(self._groups) > self._max_groups:  # one more than may be tells the endpoint, too
            raise too_many(self._max_groups, self._definition)
        group = self._groups[word] = _Group(self._wants)
        self.size += len(word)
        self._begin(group, stretch.keys[at], stretch.values[at])
        return group

    def _begin(self, group: _Group, entry: bytes, value: bytes) -> None:
        """Let an entry be the first of a group."""
        read = self._first_reader.read([entry], [value])[0]
        shown = [of(*read) for of in self._values]
        self.size -= len(group.key) + len(group.forms) + len(group.entry)
        group.key, group.forms, group.entry = encode_key(shown), key_forms(shown), entry
        self.size += len(group.key) + len(group.forms) + len(group.entry)

    def _feed(self, group: _Group, stretch: EntryRun) -> None:
        group.entries += len(stretch.keys)
        if stretch.keys[0] < group.entry:
            self._begin(group, stretch.keys[0], stretch.values[0])
        for column, to in zip(self._columns, group.accumulators, strict=True):
            before, size = len(to.distinct), to.size
            column.add(stretch, to)
            self._distinct += len(to.distinct) - before
            self.size += to.size - size
        if self._distinct > self._max_groups:
            raise too_many(self._max_groups, self._definition)


def too_many(limit: int, definition: IndexDefinition) -> TooManyGroupsError:
    """The error of an index that has more groups than `limit`, or distinct values."""
    return TooManyGroupsError(
        f"there are more than {limit} groups, or distinct values",
        next_step=f"{_fewer(definition, 'a limit')}, or raise scan.max_groups",
    )


def too_large(limit: int, definition: IndexDefinition) -> TooManyGroupsError:
    """The error of an index whose groups, distinct values and extremes take more bytes than `limit`."""
    return TooManyGroupsError(
        f"the groups, with their distinct values and extremes, take more than {limit:,} bytes",
        next_step=f"{_fewer(definition, 'a small limit')}, or raise scan.max_query_bytes",
    )


def _fewer(definition: IndexDefinition, limit: str) -> str:
    """What to do for fewer groups at a time."""
    if definition.structure.ordered:
        return (
            f"group by the leading key parts with {limit} (and go on with `low`), aggregate narrower spans "
            "one by one"
        )
    return f"aggregate some keys at a time (`equals`, `spans`, IN), ask an index USING btree with {limit}"
