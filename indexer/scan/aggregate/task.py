"""The task `aggregate`: one slice's share of an aggregate (`indexer.scan.local.tasks`). Pure.

A call looks at a bounded number of entries, for groups of a bounded number of bytes, and says where it is, so
that no aggregate keeps a thread from others for long, or much memory, or goes on for a reader who has gone.
What the store knows without reading (how many entries there are, where they begin and end) is not read.

What is wrong with the question itself (too many groups) is part of the result: it is not the node's fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from indexer.scan.aggregate.accumulators import Accumulator
from indexer.scan.aggregate.request import AggregationPlan
from indexer.scan.aggregate.slice import GroupState, SliceAggregate, wants_of
from indexer.scan.local.filtering import Bound, Conditions, EntryTest, Filters, key_test, picked
from indexer.scan.local.tasks import SliceWork, Unfinished
from indexer.scan.plan.selection import stretches
from indexer.view import DoubtfulReadError
from keytide.collation import decode_key, skip_key, successor
from keytide.collation.layout import INVERTED, TAG_NULL
from keytide.definition.binding import Binding
from keytide.errors import CallerError, InvariantViolationError
from keytide.model.entry import unpack_value

TASK: Final = "aggregate"

_UNREADABLE: Final = (InvariantViolationError, UnicodeDecodeError, msgspec.DecodeError)
"""What decoding entries raises that cannot have been written."""
_ABOVE_NULL: Final = bytes((TAG_NULL + 1,))
"""Below every code word that is neither NULL nor MISSING, above those that are."""
_NULLS: Final = bytes((TAG_NULL,)).translate(INVERTED)
"""The same of a descending part: above the others, not above NULL and MISSING."""


class Arguments(msgspec.Struct, frozen=True, array_like=True):
    """What the task is told.

    Attributes:
        plan: JSON (integers in it may be of any size).
        reverse, wanted, max_groups: as in `SliceAggregate`.
        entries: how many a call looks at, about.
        after: slice -> behind which entry key it goes on, in the direction of the read.
        room: bytes of groups that a call may come to, about (`SliceAggregate.size`). A release that does not
            know of it passes it over.
    """

    plan: bytes
    reverse: bool
    wanted: int | None
    max_groups: int
    entries: int
    after: dict[int, bytes]
    room: int = 1 << 62


class Partial(msgspec.Struct, frozen=True, array_like=True):
    """What a call has worked out.

    Attributes:
        groups: those of the entries that it looked at.
        more: whether the slice has more to be looked at, behind `reached`.
        examined: entries that it looked at.
        refused: problem type and message, when the question cannot be answered.
    """

    groups: list[GroupState]
    more: bool
    reached: bytes
    examined: int
    refused: tuple[str, str, str] | None = None


encode_arguments: Final = msgspec.msgpack.Encoder().encode
decode_partial: Final = msgspec.msgpack.Decoder(Partial).decode
encode_plan: Final = msgspec.json.Encoder().encode
_encode: Final = msgspec.msgpack.Encoder().encode
_decode_arguments: Final = msgspec.msgpack.Decoder(Arguments).decode
_decode_plan: Final = msgspec.json.Decoder(AggregationPlan).decode
_conditions: Final = Conditions()
_filters: Final = Filters()
"""Kept, for every call of an aggregate comes with the same, which may list thousands of values."""


def aggregate_slice(work: SliceWork) -> bytes | Unfinished:
    """The task.

    Raises:
        DoubtfulReadError: an entry cannot have been written.
        msgspec.DecodeError: the arguments cannot be read.
    """
    call = _Call(work)
    try:
        partial = call.partial()
        return Unfinished(_encode(partial)) if partial.more else _encode(partial)
    except CallerError as error:
        refused = (error.problem_type, error.message, error.next_step)
        return _encode(Partial([], False, b"", 0, refused))
    except _UNREADABLE as error:
        raise DoubtfulReadError(f"an entry cannot be read ({error})") from error


class _Call:
    """One call of the task."""

    def __init__(self, work: SliceWork) -> None:
        self._work = work
        self._arguments = _decode_arguments(work.request.shape.body)
        self._plan = _decode_plan(self._arguments.plan)
        shape = work.request.shape
        index, definition = work.request.span.index, work.definition
        self._tested: Bound | None = None
        self._test: EntryTest | None
        if definition.structure_type.has_places:
            # Places are tested many at once, not with the columns of a block.
            self._test = _filters.test(index, definition, shape)
        else:
            self._tested = _conditions.of(index, definition, shape.filter)
            self._test = key_test(definition.structure, shape.keys) if shape.keys else None
        self._after = self._arguments.after.get(work.slice, b"")

    def partial(self) -> Partial:
        known = self._known()
        if known is not None:
            return known
        arguments = self._arguments
        aggregate = SliceAggregate(
            self._work.definition,
            self._plan,
            self._tested,
            reverse=arguments.reverse,
            wanted=arguments.wanted,
            max_groups=arguments.max_groups,
        )
        examined = 0
        pace = self._work.pace
        for part in (part for block in self._blocks(aggregate.backwards) for part in pace.parts(block)):
            wanted = picked(self._test, part)
            goes_on = not wanted or aggregate.add(wanted)
            examined += len(part)
            if not goes_on:
                break
            if examined >= arguments.entries or aggregate.size >= arguments.room or pace.spent:
                return Partial(aggregate.groups(), True, part[-1][0], examined)
        return Partial(aggregate.groups(), False, b"", examined)

    def _blocks(self, backwards: bool) -> Iterator[list[tuple[bytes, bytes]]]:
        """The entries of all spans behind `after`, in the direction of the read."""
        span = msgspec.structs.replace(self._work.request.span, reverse=backwards)
        yield from self._work.snapshot.rows_of(list(stretches(span, self._after)), backwards)

    # --- what the store knows -----------------------------------------------------

    def _known(self) -> Partial | None:
        """The answer without reading, if it can be had so."""
        plan, spans = self._plan, self._work.request.span.spans
        if plan.groups or self._tested is not None or self._test is not None or not spans:
            return None
        whole = all(not low and high is None for low, high in spans)
        counts = any(function.operand < 0 for function in plan.functions)
        if counts and not whole:
            return None
        if any(
            function.function not in ("min", "max") for function in plan.functions if function.operand >= 0
        ):
            return None
        binding = Binding(self._work.definition)
        if plan.operands and not self._work.definition.structure.ordered:
            return None
        if any(binding.part(node) != 0 for node in plan.operands):
            return None
        entries = sum(self._work.snapshot.count(low, high) for low, high in spans) if counts else 0
        accumulators = [Accumulator(wants) for wants in wants_of(plan)]
        if accumulators:
            self._ends(accumulators[0])
        return Partial(
            [GroupState(b"", b"", b"", entries, [one.pack() for one in accumulators])], False, b"", 0
        )

    def _ends(self, to: Accumulator) -> None:
        """The first and the last value of the leading key part, neither NULL nor MISSING."""
        descending = self._work.definition.keys[0].descending
        spans: list[tuple[bytes, bytes | None]] = []
        for low, high in self._work.request.span.spans:
            if descending:
                high = _NULLS if high is None else min(high, _NULLS)
            else:
                low = max(low, _ABOVE_NULL)
            if high is None or low < high:
                spans.append((low, high))
        for backwards in (False, True):
            found = self._outermost(spans, backwards)
            if found is not None and descending:
                # It has the greatest or the least value: of equal ones the other end counts.
                word = found[0][: skip_key(found[0], 1, self._work.definition.descending)]
                above = successor(word)
                equal = [
                    (max(low, word), above if high is None else min(high, above))
                    for low, high in spans
                    if low < above and (high is None or high > word)
                ]
                found = self._outermost(equal, not backwards)
            if found is not None:
                self._stretch(to, *found)

    def _outermost(
        self, spans: Sequence[tuple[bytes, bytes | None]], backwards: bool
    ) -> tuple[bytes, bytes] | None:
        """The first entry of the spans, or the last; None when there is none."""
        for low, high in reversed(spans) if backwards else spans:
            block = next(self._work.snapshot.rows(low, high, backwards, 1), None)
            if block:
                return block[0]
        return None

    def _stretch(self, to: Accumulator, entry: bytes, value: bytes) -> None:
        directions = self._work.definition.descending
        forms = unpack_value(value)[0] if value else b""
        code = entry[: skip_key(entry, 1, directions)]
        if directions and directions[0]:
            code = code.translate(INVERTED)
        to.stretch(code, entry, decode_key(entry, 1, directions, forms)[0][0])
