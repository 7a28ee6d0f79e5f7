"""The CREATE INDEX that would serve a query which no index serves.

Equalities come first in its key, then what the query is ordered or grouped by, else lists and ranges, then
the array to unnest; paths that the query needs besides are included. `include_missing` is said when the query
does not exclude documents without the leading key. The statement is tried before it is shown: it parses, and
the index that it makes serves the query.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, get_args

from keytide.definition.binding import Binding
from keytide.definition.expression import (
    And,
    Comparison,
    DistanceTo,
    DocumentId,
    Expression,
    In,
    IsNull,
    Literal,
    Not,
    Or,
    Path,
    Predicate,
    Relates,
    Unnest,
    identity,
    walk,
)
from keytide.definition.index import MAX_KEY_PARTS, IndexDefinition, KeyPart
from keytide.definition.names import free_name
from keytide.definition.render import path_name, render_expression, render_name
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.query.parse.expressions import AggregateCall
from keytide.query.parse.normal import conjuncts, is_constant
from keytide.query.parse.select import Select
from keytide.query.plan.intervals import ALL
from keytide.query.plan.plan import Candidate, Plan, asked_of, may_be_missing, plan_on
from keytide.query.plan.regions import region
from keytide.structure import DEFAULT_STRUCTURE

_LONGEST_NAME: Final = 60
_CONDITIONS: Final = get_args(Predicate)


def suggest(select: Select, taken: Collection[str] = (), *, name_btree: bool = False) -> str | None:
    """A CREATE INDEX statement whose index serves the query; None if there is none.

    Args:
        taken: names of indexes that there are.
        name_btree: USING is written, though an index is a btree without it.
    """
    condition = asked_of(select)
    btree = f"USING {DEFAULT_STRUCTURE} " if name_btree else ""
    # By id any query can be answered.
    ways = [(_keys(select, condition), btree, "", MAX_KEY_PARTS)]
    ways.append(([KeyPart(DocumentId())], btree, "", MAX_KEY_PARTS))
    if (place := _place(condition)) is not None:
        ways.insert(0, ([KeyPart(place[0])], "USING spatial ", "" if place[1] else " WITH (srid=0)", 1))
    for keys, using, options, most in ways:
        keys, include = _with_rest(select, condition, keys)
        if len(keys) > most:
            continue
        statement = _statement(select, condition, keys, include, taken, using) + options
        parsed = parse_statement(statement)
        if isinstance(parsed, CreateIndex):
            made = Candidate(parsed.definition.name, parsed.definition)
            if isinstance(plan_on(select, made, condition), Plan):
                return statement
    return None


def _place(condition: Predicate) -> tuple[Expression, int] | None:
    """The expression of a place that a query says something of, and in which system; None if of none."""
    for one in conjuncts(condition):
        match one:
            case Relates(operand=operand, place=place):
                return operand, place.srid
            case Not(operand=IsNull(operand=DistanceTo(operand=operand, place=place))):
                return operand, place.srid
            case Comparison(left=DistanceTo(operand=operand, place=place)):
                return operand, place.srid
    return None


def _keys(select: Select, condition: Predicate) -> list[KeyPart]:
    """The key that suits the query best."""
    keys: dict[bytes, KeyPart] = {}

    def add(expression: Expression, descending: bool = False) -> None:
        of_element = any(isinstance(node, Unnest) for node in walk(expression))
        if of_element and not isinstance(expression, Unnest):  # one UNNEST is allowed, the bare one needed
            return
        if len(keys) < MAX_KEY_PARTS // 2 and not is_constant(expression):
            keys.setdefault(identity(expression), KeyPart(expression, descending))

    ranged: list[Expression] = []
    listed: list[Expression] = []
    for one in conjuncts(condition):
        match one:
            case Comparison(operator="=", left=left, right=Literal()):
                add(left)
            case In(operand=operand):
                listed.append(operand)
            case Or():
                continue
            case _:
                about = one.left if isinstance(one, Comparison) else _operand(one)
                if about is not None and region(one, about).intervals != ALL.intervals:
                    ranged.append(about)
    ordered = [one for one in select.order_by if not isinstance(one.value, AggregateCall)]
    if select.group_by:
        for expression in select.group_by:
            add(expression)
    elif ordered and not select.grouped:
        for item in ordered:
            if not isinstance(item.value, AggregateCall):
                add(item.value, item.descending)
    for expression in [*listed, *ranged[:1]]:
        add(expression)
    return list(keys.values())


def _operand(node: Predicate) -> Expression | None:
    while not isinstance(node, And | Or | Comparison):
        operand = node.operand
        if not isinstance(operand, _CONDITIONS):
            return operand  # type: ignore[return-value]
        node = operand
    return None


def _with_rest(
    select: Select, condition: Predicate, keys: list[KeyPart]
) -> tuple[list[KeyPart], tuple[Path, ...]]:
    """The key with the array to unnest, and the included paths, for all that the query says."""
    unnest = select.unnest if select.member is None else select.member.left
    if unnest is not None and all(identity(part.expression) != identity(unnest) for part in keys):
        keys = [*keys, KeyPart(unnest)]
    keys = keys or [KeyPart(DocumentId())]
    include: dict[str, Path] = {}
    needed = [*select.values, *conjuncts(condition)]
    binding = Binding(_definition(select, keys, ()))
    for node in needed:
        if binding.serves(node):
            continue
        for below in walk(node):
            if not isinstance(below, Path) or binding.serves(below):
                continue
            name = path_name(below)
            if include.setdefault(name, below) != below:  # "a.b" and a.b would be one column
                keys = [*keys, KeyPart(below)]
            binding = Binding(_definition(select, keys, tuple(include.values())))
    return keys, tuple(include.values())


def _definition(select: Select, keys: list[KeyPart], include: tuple[Path, ...]) -> IndexDefinition:
    return IndexDefinition("x", select.keyspace, "", tuple(keys), keys[0].expression, include)


def _statement(
    select: Select,
    condition: Predicate,
    keys: list[KeyPart],
    include: tuple[Path, ...],
    taken: Collection[str],
    using: str,
) -> str:
    parts = [render_expression(one.expression) + (" DESC" if one.descending else "") for one in keys]
    name = _name(parts, taken)
    text = f"CREATE INDEX {render_name(name)} ON {render_name(select.keyspace)} {using}({', '.join(parts)})"
    if include:
        text += f" INCLUDE ({', '.join(map(render_expression, include))})"
    if may_be_missing(condition, keys[0].expression):
        text += " WITH (include_missing=true)"
    return text


def _name(parts: list[str], taken: Collection[str]) -> str:
    """A name that says what the key is, and is not taken."""
    words = [re.sub(r"[^A-Za-z0-9]++", "_", part).strip("_").lower() for part in parts]
    stem = "_".join(["by", *filter(None, words)])[:_LONGEST_NAME].rstrip("_")
    return free_name(stem, taken)
