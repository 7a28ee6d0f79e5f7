"""The best index for a query, or the error that says which CREATE INDEX would make one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from keytide.definition.expression import identity
from keytide.definition.index import IndexDefinition
from keytide.definition.render import render_expression, render_predicate
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.errors import CallerError
from keytide.query.parse.expressions import AggregateCall, column_name
from keytide.query.parse.select import Select
from keytide.query.plan.boxes import MAX_BOXES
from keytide.query.plan.plan import Candidate, Plan, Refusal, plans
from keytide.query.plan.similar_names import meant
from keytide.query.plan.suggest import suggest
from keytide.structure import DEFAULT_STRUCTURE


class NoIndexError(CallerError):
    """No index serves a query. `extra` has `create_index`, a statement that makes one, and `indexes`, why
    each index of the keyspace does not."""

    problem_type = "no-index"
    status = 422


def choose(
    select: Select,
    candidates: Sequence[Candidate],
    taken: Collection[str] = (),
    keyspaces: Collection[str] = (),
) -> tuple[Plan, list[Plan], list[Refusal]]:
    """The plan to follow, the other plans, and the indexes that do not serve.

    Args:
        taken: names that a new index cannot have besides: those of the indexes of other keyspaces.
        keyspaces: those that have indexes, to tell one that was mistyped.

    Raises:
        NoIndexError: no index serves.
    """
    found, refusals = plans(select, candidates)
    if found:
        return found[0], found[1:], refusals
    reasons = {one.index: one.reason for one in refusals}
    # Where an index has another structure, that may be why: so it is said.
    others = any(one.name in reasons and one.definition.using != DEFAULT_STRUCTURE for one in candidates)
    statement = suggest(select, {*taken, *(one.name for one in candidates)}, name_btree=others)
    told = "; ".join(f"{name}: {reason}" for name, reason in sorted(reasons.items()))
    hint = meant(select, [one.definition for one in candidates], keyspaces)
    leaves_out = "" if statement is None else _leaves_out(statement, candidates)
    step = f"create one, and build it{leaves_out}: {statement}" if statement else "ask for less in one query"
    raise NoIndexError(
        f"no index of {select.keyspace} serves this query" + (f" ({told})" if told else ""),
        next_step=f"{hint} {step}".strip(),
        create_index=statement,
        indexes=reasons,
    )


def _leaves_out(statement: str, candidates: Sequence[Candidate]) -> str:
    """That the index which a statement makes leaves out long keys, where one of the same values does not."""
    made = parse_statement(statement)
    if not isinstance(made, CreateIndex) or (limit := made.definition.structure_type.key_limit) is None:
        return ""
    keys = _keys(made.definition)
    for one in candidates:
        kind = one.definition.structure_type
        if kind.key_limit is None and not kind.has_places and keys & _keys(one.definition):
            return f" (it leaves out keys of more than {limit >> 10} KiB, which {one.name} has)"
    return ""


def _keys(definition: IndexDefinition) -> set[bytes]:
    return {identity(part.expression) for part in definition.keys}


def described(plan: Plan, others: Sequence[Plan], refusals: Sequence[Refusal]) -> dict[str, Any]:
    """A plan as EXPLAIN shows it."""
    select, definition = plan.select, plan.index.definition
    grouped = select.grouped
    pushed = {
        "condition": plan.reading.bounded or bool(plan.reading.keys),
        "filter": plan.filter is not None,
        "order": bool(select.order_by) and (plan.ordered or plan.nearest is not None),
        "limit": select.limit is not None and (plan.ordered or plan.nearest is not None),
        "aggregates": grouped,
    }
    sorted_by = [] if plan.ordered or not select.order_by else [_item(one) for one in plan.order_by]
    return {
        "index": plan.index.name,
        "columns": [one.name for one in plan.outputs],
        "spans": spans_described(plan),
        "reverse": plan.reverse,
        "structure": definition.using,
        "slices_asked": list(plan.slices),
        "slices_of_index": definition.slices,
        "partitions_asked": plan.partitions,
        "partitions_of_index": definition.partitions,
        "residual": None if plan.filter is None else render_predicate(plan.filter),
        "pushed_down": [name for name, is_pushed in pushed.items() if is_pushed],
        "group_by": [render_expression(one) for one in select.group_by],
        "aggregates": [column_name(one) for one in plan.aggregates],
        "sorted_by": sorted_by,
        "limit": select.limit,
        "offset": select.offset,
        "estimate": {
            "entries_read": round(plan.entries),
            "entries_of_index": plan.index.entries,
            "assumed": plan.index.entries is None,
        },
        "other_indexes": {
            **{one.index.name: _behind(one, plan) for one in others},
            **{one.index: one.reason for one in refusals},
        },
    }


def spans_described(plan: Plan) -> list[str]:
    """The spans as conditions on key parts, one line for each box that they were made from; a long list is
    cut."""
    parts = plan.index.definition.keys
    if plan.reading.share is not None:
        count = len(plan.reading.spans)
        return [f"{count} stretches of cells"] if plan.reading.bounded else ["the whole index"]
    lines = []
    for box, depth in zip(plan.reading.boxes, plan.reading.depth, strict=True):
        words = [
            f"{render_expression(parts[at].expression)} {_either([one.described() for one in box[at]])}"
            for at in range(depth)
        ]
        lines.append(", ".join(words) or "the whole index")
    if plan.reading.keys and not any(plan.reading.depth):  # too many to be looked up one by one
        return [f"the whole index, of which entries with one of {len(plan.reading.keys)} keys"]
    lines = list(dict.fromkeys(lines))
    more = len(lines) - MAX_BOXES
    return [*lines[: MAX_BOXES - 1], f"{more + 1} more"] if more > 0 else lines


def _either(words: Sequence[str]) -> str:
    """Several intervals of one part; a long list is cut."""
    most = 10
    if len(words) <= most:
        return " or ".join(words)
    return " or ".join(words[: most - 1]) + f" or {len(words) - most + 1} more"


def _item(one: Any) -> str:
    value = one.value
    text = column_name(value) if isinstance(value, AggregateCall) else render_expression(value)
    return f"{text} DESC" if one.descending else text


def _behind(other: Plan, best: Plan) -> str:
    """Why a plan was not taken."""
    count = f"{round(other.entries)} entries"
    if round(other.entries) != round(best.entries):
        return f"it would serve, reading {count} by estimate"
    if other.ordered != best.ordered:
        return "it would serve, but its order is not the query's"
    if other.misses_order and not best.misses_order:
        return f"it would serve, but has no order of keys: it is USING {other.index.definition.using}"
    if len(other.slices) != len(best.slices):
        return f"it would serve, asking {len(other.slices)} slices"
    return f"it would serve as well, reading {count} by estimate"
