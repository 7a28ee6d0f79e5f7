"""A condition on key parts as spans of an index. Pure.

Theory of operation
===================
A condition in Keytide's SQL, in its normal form, is an Or of Ands (others are multiplied out, up to a limit).
An And becomes spans when it fixes leading key parts by `=` or IN and bounds at most the one behind them, by
comparisons or a LIKE that is a prefix. The choices of several INs are multiplied. What cannot be told so
exactly is refused with the word to filter by it in Spark: the spans are not a first guess, they are what the
DataFrame is.

Keys are ordered by type first (null, booleans, numbers, strings, arrays, objects) and a comparison holds
between values of one type only, so a range ends where its type does: `n > 3` ends before the lowest string.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, Final

from keytide.definition.expression import (
    And,
    Comparison,
    DistanceTo,
    In,
    Like,
    Literal,
    Or,
    Predicate,
    Relates,
)
from keytide.definition.render import column_sql, render_predicate
from keytide.definition.semantics import compare
from keytide.query.parse.normal import FALSE, TRUE, normal
from keytide.query.parse.statement import parse_query
from streaming.source.core.options import OptionError

MAX_SPANS: Final = 1_000
"""As many as nodes take in one request by default (`scan.max_spans`)."""

_FARTHEST: Final = 1e300
"""No distance is larger, in a plane either; larger integers may be none of the doubles."""

SpanFields = dict[str, Any]
_Condition = Comparison | In | Like
_Bound = tuple[Any, bool]
"""A value, and whether it belongs to the range."""

_LOWEST: Final[Mapping[type, _Bound]] = {bool: (False, True), int: (True, False), str: ("", True)}
_HIGHEST: Final[Mapping[type, _Bound]] = {bool: (True, True), int: ("", False), str: ([], False)}
"""Where the values of a type begin and end, in the order of keys."""
_ORDERS: Final[Mapping[str, tuple[int, ...]]] = {
    "=": (0,),
    "<": (-1,),
    "<=": (-1, 0),
    ">": (1,),
    ">=": (0, 1),
}
"""What `compare` says where a comparison is true."""
_INCLUSION: Final = {
    (True, True): "both",
    (True, False): "low",
    (False, True): "high",
    (False, False): "neither",
}


def selection_of(text: str, parts: Sequence[str]) -> dict[str, Any] | None:
    """The members of a scan request for the rows for which a condition is true; None where there are none.
    Takes and raises what `spans_of` does."""
    condition = normal(_parsed(text))
    asked = _asked_of_place(condition)
    if asked is not None and column_sql(asked.operand) in parts[:1]:
        place = json.loads(asked.place.geojson)
        if asked.relation == "dwithin":
            return {"near": {"point": place, "metres": asked.metres}, "srid": asked.place.srid}
        return {asked.relation: place, "srid": asked.place.srid}
    spans = _spans_of(condition, parts)
    return {} if spans is None else {"spans": spans} if spans else None


def _asked_of_place(node: Predicate) -> Relates | None:
    """What a condition asks of one place; a distance of at most so many metres is ST_DWithin."""
    match node:
        case Relates():
            return node
        case Comparison("<=", DistanceTo() as distance, Literal(value=int() | float() as metres)):
            if type(metres) is not bool and 0 <= metres <= _FARTHEST:
                return Relates("dwithin", distance.operand, distance.place, float(metres))
    return None


def spans_of(text: str, parts: Sequence[str]) -> list[SpanFields] | None:
    """The spans, as a scan request has them, of the rows for which a condition is true; None for all rows, []
    for none.

    Args:
        text: what would stand behind WHERE.
        parts: names of the index's key parts, in order.

    Raises:
        OptionError: it is no condition on leading key parts, or one of too many spans.
        InvalidStatementError: it is no SQL.
    """
    return _spans_of(normal(_parsed(text)), parts)


def _spans_of(condition: Predicate, parts: Sequence[str]) -> list[SpanFields] | None:
    if condition == TRUE:
        return None
    spans: list[SpanFields] = []
    for one in _alternatives(condition):
        spans += _spans(one, parts)
        if len(spans) > MAX_SPANS:
            raise OptionError(f"`where` selects more than {MAX_SPANS} stretches of the index")
    return spans


def _parsed(text: str) -> Predicate:
    query = parse_query(f"SELECT id FROM rows WHERE {text}")
    plain = not (query.group_by or query.order_by or query.offset or query.limit is not None)
    if query.where is None or query.member is not None or not plain:
        raise OptionError(
            "`where` takes a condition on key parts only, like \"city = 'Boston' AND n >= 3\"; of an array's "
            "elements it is `UNNEST(tags) = 'x'`"
        )
    return query.where


def _alternatives(node: Predicate) -> list[tuple[Predicate, ...]]:
    """The condition as an Or of Ands of single conditions."""
    if node == FALSE:
        return []
    if isinstance(node, Or):
        found = [one for operand in node.operands for one in _alternatives(operand)]
    elif isinstance(node, And):
        found = [()]
        for operand in node.operands:
            more = _alternatives(operand)
            if len(found) * len(more) > MAX_SPANS:
                raise OptionError(f"`where` has more than {MAX_SPANS} alternatives")
            found = [(*one, *other) for one in found for other in more]
    else:
        return [(node,)]
    if len(found) > MAX_SPANS:
        raise OptionError(f"`where` has more than {MAX_SPANS} alternatives")
    return found


def _spans(conditions: Iterable[Predicate], parts: Sequence[str]) -> list[SpanFields]:
    """The spans of single conditions that must all hold."""
    by_part: dict[int, list[_Condition]] = {}
    for one in conditions:
        by_part.setdefault(_part(one, parts), []).append(one)  # type: ignore[arg-type] # `_part` has checked
    last = max(by_part)
    fixed: list[list[Any]] = []
    for part in range(last + 1):
        points = _points(by_part.get(part, []))
        if points is not None:
            fixed.append(points)
        elif part < last:
            raise OptionError(
                f"`where` must say by = or IN what {parts[part]} is, by which the index is ordered first: "
                f"filter by {parts[last]} in Spark"
            )
    if prod(map(len, fixed)) > MAX_SPANS:
        raise OptionError(f"`where` selects more than {MAX_SPANS} stretches of the index")
    found: list[SpanFields] = []
    for equals in product(*fixed):
        found += [{"equals": list(equals)}] if len(fixed) > last else _range(list(equals), by_part[last])
    return found


def _part(node: Predicate, parts: Sequence[str]) -> int:
    """Which key part a single condition is about.

    Raises:
        OptionError: none, or it is not one of those that give spans.
    """
    name = ""
    if isinstance(node, Comparison) and node.operator != "<>" and isinstance(node.right, Literal):
        name = column_sql(node.left)
    elif isinstance(node, In) or (isinstance(node, Like) and _prefix(node) is not None):
        name = column_sql(node.operand)
    if name not in parts:
        raise OptionError(
            f"`where` cannot have {render_predicate(node)}: it takes =, <, <=, >, >=, IN, BETWEEN and "
            f"LIKE 'abc%' of {', '.join(parts)}, with AND and OR, or one condition on a place, alone, of a "
            "spatial index; filter by everything else in Spark"
        )
    return parts.index(name)


def _points(conditions: Sequence[_Condition]) -> list[Any] | None:
    """The values that conditions on one key part leave it, if they leave it but some.

    A range whose ends are one value is that: so a hash index, which has no order, answers it as in SQL.
    """
    lows, highs = (
        [one.right for one in conditions if isinstance(one, Comparison) and one.operator == operator]
        for operator in (">=", "<=")
    )
    for low, high in product(lows, highs):
        if isinstance(low, Literal) and isinstance(high, Literal) and compare(low.value, high.value) == 0:
            return [low.value] if all(_holds(other, low.value) for other in conditions) else []
    for one in conditions:
        if isinstance(one, In) or (isinstance(one, Comparison) and one.operator == "="):
            choices = one.choices if isinstance(one, In) else (one.right,)
            values = [choice.value for choice in choices if isinstance(choice, Literal)]
            return [value for value in values if all(_holds(other, value) for other in conditions)]
    return None


def _holds(condition: _Condition, value: Any) -> bool:
    """Whether a condition on a key part is true of a value."""
    if isinstance(condition, Like):
        return isinstance(value, str) and value.startswith(_prefix(condition) or "")
    if isinstance(condition, In):
        return any(isinstance(one, Literal) and compare(value, one.value) == 0 for one in condition.choices)
    right = condition.right
    order = compare(value, right.value) if isinstance(right, Literal) else None
    return order is not None and order in _ORDERS[condition.operator]


def _range(equals: list[Any], conditions: Sequence[_Condition]) -> list[SpanFields]:
    """The span behind fixed key parts of comparisons or a LIKE on the next one; none when nothing can be in
    it."""
    likes = [one for one in conditions if isinstance(one, Like)]
    if likes:
        if len(conditions) > 1:
            raise OptionError(
                "`where` can have no other condition on a key part beside a LIKE: filter in Spark"
            )
        return [{"equals": equals, "prefix": _prefix(likes[0])}]
    bounds = [(one.operator, one.right.value) for one in conditions if isinstance(one, Comparison)]  # type: ignore[union-attr]
    kind = _kind(bounds[0][1])
    if any(_kind(value) is not kind for _, value in bounds):
        return []  # no value compares with values of two types
    low, high = _LOWEST[kind], _HIGHEST[kind]
    lows = [(value, operator == ">=") for operator, value in bounds if operator in (">", ">=")]
    highs = [(value, operator == "<=") for operator, value in bounds if operator in ("<", "<=")]
    if lows:
        low = max(lows, key=lambda bound: (bound[0], not bound[1]))
    if highs:
        high = min(highs)
    span: SpanFields = {
        "low": [*equals, low[0]],
        "high": [*equals, high[0]],
        "inclusion": _INCLUSION[low[1], high[1]],
    }
    return [span]


def _kind(value: Any) -> type:
    return int if isinstance(value, float) else type(value)


def _prefix(like: Like) -> str | None:
    """What strings begin with that are like a pattern; None when that does not say it all."""
    if not like.pattern.endswith("%"):
        return None
    found, escaped = "", False
    for letter in like.pattern[:-1]:
        if not escaped and letter == like.escape:
            escaped = True
            continue
        if not escaped and letter in "%_":
            return None
        found += letter
        escaped = False
    return None if escaped else found
