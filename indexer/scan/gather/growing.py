"""The groups of all slices, while they grow.

What they hold is weighed as it comes: a group when it is new, of one that is there what it has grown by.
Where only the first groups in their order are wanted, those behind are let go of: whatever comes of other
slices, they stay behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from indexer.scan.aggregate.accumulators import Accumulator, Wants
from indexer.scan.aggregate.slice import GroupState, too_large, too_many
from indexer.scan.aggregate.task import Partial
from indexer.scan.gather.scatter import SliceAnswers
from keytide.definition.index import IndexDefinition


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What the groups of one answer may come to.

    Attributes:
        count: groups, and distinct values.
        size: bytes of their keys and values.
    """

    count: int
    size: int


@dataclass(slots=True)
class GrowingGroup:
    """A group of the answer, while it grows.

    Attributes:
        forms, entry: of its first entry (`GroupState`).
        entries: how many it has.
        accumulators: one per operand of the plan.
    """

    forms: bytes
    entry: bytes
    entries: int
    accumulators: list[Accumulator]


@dataclass(slots=True)
class Aggregated(SliceAnswers):
    """The groups of all slices.

    Attributes:
        groups: by the code words of what they are grouped by.
        distinct: values of all of them.
        size: bytes of keys and values of all of them.
        met: slice -> how many groups it gave: one that has enough of them is asked no more.
    """

    groups: dict[bytes, GrowingGroup] = field(default_factory=dict)
    distinct: int = 0
    size: int = 0
    met: dict[int, int] = field(default_factory=dict)
    _last: dict[int, bytes] = field(default_factory=dict)

    def merge(
        self,
        number: int,
        partial: Partial,
        wants: Sequence[Wants],
        limits: GroupLimits,
        definition: IndexDefinition,
        first: tuple[int, bool] | None,
    ) -> None:
        """Add what a slice has worked out.

        Args:
            first: how many groups are wanted, and whether in descending order, if slices give them in that
                order.

        Raises:
            TooManyGroupsError: there are too many groups, or distinct values, or they are too large.
        """
        self.read[number] = self.read.get(number, 0) + partial.examined
        for state in partial.groups:
            self._add(state, wants)
        if partial.groups:
            again = partial.groups[0].key == self._last.get(number)  # its last call ended within the group
            self.met[number] = self.met.get(number, 0) + len(partial.groups) - again
            self._last[number] = partial.groups[-1].key
        if first is not None and (len(self.groups) > 2 * first[0] or self._exceeds(limits)):
            self._leave_out(*first)
        if (first is None and len(self.groups) > limits.count) or self.distinct > limits.count:
            raise too_many(limits.count, definition)
        if self.size > limits.size:
            raise too_large(limits.size, definition)

    def _exceeds(self, limits: GroupLimits) -> bool:
        return self.distinct > limits.count or self.size > limits.size

    def _add(self, state: GroupState, wants: Sequence[Wants]) -> None:
        found = [Accumulator.unpack(one, want) for one, want in zip(state.states, wants, strict=True)]
        group = self.groups.get(state.key)
        if group is None:
            group = GrowingGroup(state.forms, state.entry, state.entries, found)
            self.groups[state.key] = group
            self._weigh(state.key, group, 1)
            return
        group.entries += state.entries
        if state.entry < group.entry:
            self.size += len(state.entry) + len(state.forms) - len(group.entry) - len(group.forms)
            group.entry, group.forms = state.entry, state.forms
        for accumulator, more in zip(group.accumulators, found, strict=True):
            size, distinct = accumulator.size, len(accumulator.distinct)
            accumulator.merge(more)
            self.size += accumulator.size - size
            self.distinct += len(accumulator.distinct) - distinct

    def _weigh(self, key: bytes, group: GrowingGroup, sign: int) -> None:
        """Count what a group holds, or take it away again."""
        size = len(key) + len(group.forms) + len(group.entry)
        self.size += sign * (size + sum(one.size for one in group.accumulators))
        self.distinct += sign * sum(len(one.distinct) for one in group.accumulators)

    def _leave_out(self, count: int, reverse: bool) -> None:
        """Let go of all groups but the first `count` and one, which tells that there are more."""
        for key in sorted(self.groups, reverse=reverse)[count + 1 :]:
            self._weigh(key, self.groups.pop(key), -1)
