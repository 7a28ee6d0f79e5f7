"""Aggregates: `POST /v1/indexes/{name}/aggregate`, and what SQL queries use of it.

Theory of operation
===================
Every slice works out partial aggregates of its own entries (`aggregate.task`), some hundred thousand entries
at a time; here they are put together by group. All that is accumulated is exact (`accumulators`), so the
answer is the same for any number of slices, nodes and calls.

When groups come in the index's own order, a slice stops once it has as many as are wanted: what is among the
first n groups of all is among the first n of every slice that has it. Such a slice has seen a further group,
so these are complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Final

import msgspec

from indexer.scan.aggregate.accumulators import Accumulator, Wants
from indexer.scan.aggregate.request import AggregateRequest, AggregationPlan, plan_of
from indexer.scan.aggregate.slice import wants_of
from indexer.scan.aggregate.task import (
    TASK,
    Arguments,
    Partial,
    decode_partial,
    encode_arguments,
    encode_plan,
)
from indexer.scan.gather.growing import Aggregated, GroupLimits, GrowingGroup
from indexer.scan.gather.reads import Reads, WrittenAnswer
from indexer.scan.gather.scatter import Target, ask_task
from indexer.scan.gather.story import explain
from indexer.scan.local.effort import ReadThreads
from indexer.scan.peer.messages import OutOfTimeError, SliceReader
from indexer.scan.plan.directory import Scannable
from indexer.scan.plan.errors import IndexNotReadyError
from indexer.scan.plan.leases import BETWEEN_CALLS_MS
from indexer.scan.plan.waiting import Gone
from indexer.scan.shape.rows import encode
from keytide.collation import MISSING, Value, decode_key, to_json_value
from keytide.definition.binding import Binding
from keytide.definition.index import IndexDefinition
from keytide.errors import CallerError, RetryableError
from keytide.query.parse.expressions import AggregateName
from keytide.query.plan.grouping import runs_backwards
from keytide.settings.settings import ScanSettings

CALL_ENTRIES: Final = 200_000
"""Entries that a node looks at in one call, over its slices: some hundred milliseconds. Not a setting: a
request's `timeout_ms` bounds the whole, this only how it is divided."""
LEAST_ROOM: Final = 64 << 10
"""Bytes of groups that a slice may give in one call, however many slices share what there is room for."""
_INLINE_BYTES: Final = 16_384
"""Partial aggregates up to this size are put together on the event loop: about 2 ms."""
_INLINE_VALUES: Final = 1_000
"""Values of an answer up to which it is written there, too."""


class AggregateTimeoutError(RetryableError):
    """Aggregating took longer than the request allows."""

    problem_type = "aggregate-timeout"
    status = 504


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which groups are wanted.

    Attributes:
        reverse: in descending order of their keys.
        limit: at most so many; None for all.
        offset: without the first so many.
    """

    reverse: bool = False
    limit: int | None = None
    offset: int = 0

    @property
    def enough(self) -> int | None:
        """How many groups must be complete; None for all."""
        return None if self.limit is None else self.offset + self.limit


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group as readers see it.

    Attributes:
        key: the values that it is grouped by.
        values: the plan's functions.
        ignored: per function, values that it left out because they are of no type that it takes.
    """

    key: list[Value]
    values: list[Value]
    ignored: list[int]


async def aggregate(
    target: Target,
    nodes: SliceReader,
    plan: AggregationPlan,
    definition: IndexDefinition,
    wanted: Wanted,
    *,
    limits: GroupLimits,
    threads: ReadThreads,
) -> Aggregated:
    """Aggregate a target: the `work` of `Reads.read`.

    Args:
        limits: of what may be held at once.
        threads: for putting much together.

    Raises:
        AggregateTimeoutError: it takes longer than the target's time.
        CallerError (422): there are too many groups, or too large ones (`too-many-groups`), or a value that
            has no order.
        SnapshotMissingError, RetryableError: as `ask`.
    """
    deadline = monotonic() + target.left_s
    result = Aggregated()
    wants = wants_of(plan)
    backwards = runs_backwards(plan.groups, definition, wanted.reverse)
    enough = wanted.enough if backwards is not None else None
    written = encode_plan(plan)
    after: dict[int, bytes] = {}
    pending = dict(target.nodes)
    while pending:
        if monotonic() > deadline:
            raise _too_long(target, result)
        now = replace(
            target,
            nodes=pending,
            lease_ms=target.lease_ms or BETWEEN_CALLS_MS,
            in_use=target.in_use or bool(after),
        )
        share = max(1, CALL_ENTRIES // max(map(len, now.by_node().values())))
        room = max(LEAST_ROOM, limits.size // len(pending))
        body = encode_arguments(Arguments(written, wanted.reverse, enough, limits.count, share, after, room))
        try:
            found = await ask_task(now, nodes, TASK, body, result)
        except OutOfTimeError as error:
            raise _too_long(target, result) from error
        first = None if enough is None else (enough, wanted.reverse)
        if sum(map(len, found.values())) <= _INLINE_BYTES and len(result.groups) <= _INLINE_VALUES:
            partials = _merge(result, found, wants, limits, definition, first)
        else:
            partials = await threads.run(_merge, result, found, wants, limits, definition, first)
        for number, partial in partials.items():
            if partial.more and (enough is None or result.met.get(number, 0) <= enough):
                after[number] = partial.reached
            else:
                del pending[number]
                after.pop(number, None)
    return result


def _too_long(target: Target, result: Aggregated) -> AggregateTimeoutError:
    return AggregateTimeoutError(
        f"{sum(result.read.values())} entries were aggregated in {target.timeout_s:.1f} s, and there are "
        "more",
        next_step="allow more with timeout_ms, or aggregate narrower spans",
    )


def _merge(
    result: Aggregated,
    found: dict[int, bytes],
    wants: Sequence[Wants],
    limits: GroupLimits,
    definition: IndexDefinition,
    first: tuple[int, bool] | None,
) -> dict[int, Partial]:
    """Put what slices have worked out together, and say how far they got. Any thread.

    Args:
        first: as in `Aggregated.merge`.

    Raises:
        CallerError: a slice has refused, or there are too many groups or distinct values, or too large ones.
    """
    partials = {}
    while found:
        number, data = found.popitem()
        partial = decode_partial(data)
        if partial.refused is not None:
            problem_type, message, next_step = partial.refused
            raise CallerError(message, status=422, problem_type=problem_type, next_step=next_step)
        result.merge(number, partial, wants, limits, definition, first)
        partials[number] = msgspec.structs.replace(partial, groups=[])
    return partials


def rows(result: Aggregated, plan: AggregationPlan, wanted: Wanted) -> tuple[list[GroupRow], bool]:
    """The groups of an answer in the order of their keys, and whether there are more.

    Without anything to group by there is one group, also of no entries.
    """
    if not plan.groups and not result.groups:
        result.groups[b""] = GrowingGroup(b"", b"", 0, [Accumulator(wants) for wants in wants_of(plan)])
    keys = sorted(result.groups, reverse=wanted.reverse)
    end = len(keys) if wanted.enough is None else wanted.enough
    made = [_row(key, result.groups[key], plan) for key in keys[wanted.offset : end]]
    return made, len(keys) > end


def _row(key: bytes, group: GrowingGroup, plan: AggregationPlan) -> GroupRow:
    values: list[Value] = []
    ignored: list[int] = []
    for function in plan.functions:
        value: Value = group.entries
        left_out = 0
        if function.operand >= 0:
            of = group.accumulators[function.operand]
            value, left_out = _result(function.function, of, distinct=function.distinct)
        values.append(value)
        ignored.append(left_out)
    return GroupRow(decode_key(key, len(plan.groups), (), group.forms)[0], values, ignored)


def _result(name: AggregateName, of: Accumulator, *, distinct: bool) -> tuple[Value, int]:
    """What a function gives of the values of its operand, and how many of them it leaves out."""
    match name:
        case "count":
            return (len(of.distinct), of.unordered) if distinct else (of.count, 0)
        case "sum":
            return of.total, of.strangers
        case "avg":
            return of.mean, of.strangers
        case "min" | "max":
            extreme = of.least if name == "min" else of.greatest
            return None if extreme is None else extreme.value(), of.unordered


# --- the endpoint -----------------------------------------------------------------------------------------


async def answer(shared: Reads, name: str, request: AggregateRequest, gone: Gone) -> WrittenAnswer:
    """The answer of `POST /v1/indexes/{name}/aggregate`.

    Raises:
        KeytideError: the typed errors of docs/reference, and those of `aggregate`.
        ReaderGoneError: the reader went away while the request waited.
    """
    index = await shared.ready_index(name, request, gone)
    definition = definition_of(shared, index)
    plan = plan_of(request.functions, request.group_by, Binding(definition))
    wanted = Wanted(request.reverse, request.limit, request.offset)
    limits = limits_of(shared.settings)
    check_wanted(wanted, limits.count)
    seen = shared.session(request)

    async def work(target: Target) -> Aggregated:
        return await aggregate(
            target,
            shared.nodes,
            plan,
            definition,
            wanted,
            limits=limits,
            threads=shared.local.threads,
        )

    agreed = await shared.read(index, await shared.selected(request, index), request, seen, gone, work)
    result = agreed.gathered
    if len(result.groups) * len(plan.functions) <= _INLINE_VALUES:
        shown, count, more = _written(result, plan, wanted)
    else:
        shown, count, more = await shared.local.threads.run(_written, result, plan, wanted)
    body: dict[str, Any] = {
        "groups": msgspec.Raw(shown),
        "more": more,
        **shared.head(agreed.stamp, shared.seen_too(seen, index, agreed.stamp)),
    }
    if request.explain:
        body["explain"] = explain(agreed, index.shape.slices)
    return WrittenAnswer(encode(body), count, index.name, request.consistency)


def _written(result: Aggregated, plan: AggregationPlan, wanted: Wanted) -> tuple[bytes, int, bool]:
    """The groups of the answer as JSON, how many, and whether there are more. Any thread.

    Raises:
        TooManyDigitsError: an extreme, or a value grouped by, has more than JSON readers take.
    """
    found, more = rows(result, plan, wanted)
    return encode([_shown(row, plan) for row in found]), len(found), more


def definition_of(shared: Reads, index: Scannable) -> IndexDefinition:
    """The definition of an index that was found a moment ago.

    Raises:
        IndexNotReadyError: it was dropped meanwhile.
    """
    record = shared.view.catalog().index(index.id)
    if record is None:
        raise IndexNotReadyError(f"index {index.name} was dropped meanwhile", next_step="try again")
    return record.definition


def limits_of(settings: ScanSettings) -> GroupLimits:
    """What the groups of one answer may come to, as a cluster's settings say it."""
    return GroupLimits(settings.max_groups, settings.max_query_bytes)


def check_wanted(wanted: Wanted, max_groups: int) -> None:
    """Raise `CallerError` (422) if more groups are asked for than one answer may have."""
    if wanted.offset + (wanted.limit or 0) > max_groups:
        raise CallerError(
            f"offset and limit ask for {wanted.offset + (wanted.limit or 0)} groups, one answer has at most "
            f"{max_groups}",
            status=422,
            problem_type="limit-too-large",
            next_step="go on behind the last group with `low` and `inclusion`, or raise scan.max_groups",
        )


def _shown(row: GroupRow, plan: AggregationPlan) -> dict[str, Any]:
    """A group as JSON. As in rows, a value that is MISSING is null, and its position told in `missing`."""
    shown: dict[str, Any] = {
        "key": [to_json_value(value) for value in row.key],
        "values": {function.name: value for function, value in zip(plan.functions, row.values, strict=True)},
    }
    missing = [at for at, value in enumerate(row.key) if value is MISSING]
    if missing:
        shown["missing"] = missing
    ignored = {
        function.name: count for function, count in zip(plan.functions, row.ignored, strict=True) if count
    }
    if ignored:
        shown["ignored"] = ignored
    return shown
