"""What a reader may ask of `POST /v1/indexes/{name}/aggregate`, and the plan that slices are told. Pure.

Functions and groups are SQL expressions over what the index holds (`keytide.definition.binding`). A plan has
them parsed, each expression once however many functions are over it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from indexer.scan.request.request import Question
from keytide.definition.binding import Binding
from keytide.definition.errors import InvalidStatementError
from keytide.definition.expression import Expression, identity
from keytide.definition.fragments import parse_expression
from keytide.definition.render import column_sql
from keytide.errors import CallerError
from keytide.query.parse.expressions import FUNCTIONS, AggregateName

MAX_FUNCTIONS: Final = 64
"""Functions, and expressions to group by, in one request: above any report, below what would hurt."""

_BEGINNING: Final = re.compile(r"([a-z][a-z0-9_]*+)\s*+(\(\s*+(distinct\b)?)?", re.IGNORECASE)


class AggregateFunction(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One function of an aggregate request."""

    function: Annotated[AggregateName, Meta(description="what to work out")]
    of: Annotated[
        str | None,
        Meta(
            description="SQL expression over the index's columns; `count` without it counts entries",
            examples=["distance"],
        ),
    ] = None
    distinct: Annotated[bool, Meta(description="count different values (of `count` only)")] = False
    name: Annotated[
        str | None, Meta(description="its name in the answer; by default as it is written, `sum(distance)`")
    ] = msgspec.field(default=None, name="as")


class AggregateRequest(Question, kw_only=True, frozen=True):
    """Body of `POST /v1/indexes/{name}/aggregate`."""

    functions: Annotated[
        list[str | AggregateFunction],
        Meta(
            min_length=1,
            max_length=MAX_FUNCTIONS,
            description=f"{', '.join(FUNCTIONS.values())}: objects, or as in SQL",
            examples=[["count", {"function": "max", "of": "id", "as": "last"}]],
        ),
    ]
    group_by: Annotated[
        list[str],
        Meta(
            max_length=MAX_FUNCTIONS,
            description="SQL expressions over the index's columns; none for one group of everything",
        ),
    ] = msgspec.field(default_factory=list)
    reverse: Annotated[bool, Meta(description="groups in descending order of their keys")] = False
    limit: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="groups in the answer")] = None
    offset: Annotated[Annotated[int, Meta(ge=0)], Meta(description="groups to leave out at the start")] = 0


class Function(msgspec.Struct, frozen=True, array_like=True):
    """A function of a plan.

    Attributes:
        operand: number of the expression that it is over, -1 for `count` of entries.
        name: in the answer.
    """

    function: AggregateName
    operand: int
    distinct: bool
    name: str


class AggregationPlan(msgspec.Struct, frozen=True, array_like=True):
    """What slices work out.

    Attributes:
        groups: expressions to group by.
        operands: expressions that functions are over.
    """

    groups: tuple[Expression, ...]
    operands: tuple[Expression, ...]
    functions: tuple[Function, ...]


def plan_of(
    functions: Sequence[str | AggregateFunction], group_by: Sequence[str], binding: Binding
) -> AggregationPlan:
    """The plan of a request.

    Raises:
        CallerError (422): a function that there is not, two of one name, an expression that cannot be read
            (`InvalidStatementError`) or that the index does not hold (`NotHeldError`).
    """
    read = [_written(one) if isinstance(one, str) else one for one in functions]
    groups = tuple(parse_expression(text) for text in group_by)
    parsed = [
        (one.function, None if one.of is None else parse_expression(one.of), one.distinct, one.name)
        for one in read
    ]
    return planned(groups, parsed, binding)


def planned(
    groups: tuple[Expression, ...],
    functions: Sequence[tuple[AggregateName, Expression | None, bool, str | None]],
    binding: Binding,
) -> AggregationPlan:
    """The plan of parsed expressions.

    Args:
        functions: (function, what it is over, whether distinct values only, name in the answer).

    Raises:
        CallerError (422): as `plan_of`.
    """
    operands: dict[bytes, tuple[int, Expression]] = {}
    made: list[Function] = []
    for function, of, distinct, given in functions:
        name = given or _name(function, of, distinct)
        if of is None and function != "count":
            raise _refusal(f"{function} needs `of`: what it is to work on", "name a column in `of`")
        if distinct and (function != "count" or of is None):
            raise _refusal(
                "`distinct` goes with `count` of an expression only",
                "min and max are the same without it; for sums group by the expression and add up",
            )
        if any(name == one.name for one in made):
            raise _refusal(f"two functions are named {name!r}", "name one of them with `as`")
        number = -1
        if of is not None:
            binding.value(of)  # refuses what is not held
            number, _ = operands.setdefault(identity(of), (len(operands), of))
        made.append(Function(function, number, distinct, name))
    for group in groups:
        binding.value(group)
    return AggregationPlan(groups, tuple(node for _, node in operands.values()), tuple(made))


def _name(function: AggregateName, of: Expression | None, distinct: bool) -> str:
    if of is None:
        return function
    return f"{function}({'distinct ' if distinct else ''}{column_sql(of)})"


def _written(text: str) -> AggregateFunction:
    """A function as SQL writes it: `count`, `count(*)`, `sum(a + b)`, `count(distinct a)`."""
    stripped = text.strip()
    match = _BEGINNING.match(stripped)
    name = FUNCTIONS.get(match[1].upper()) if match else None
    inside = stripped[match.end() :] if match else ""
    closed = inside.endswith(")") if match and match[2] else not inside
    if match is None or name is None or not closed:
        *others, last = FUNCTIONS.values()
        raise _refusal(
            f"{text[:100]!r} is no function",
            f"write one of {', '.join(others)} and {last} with an expression, as in sum(amount)",
        )
    inside = inside.removesuffix(")").strip()
    if name == "count" and inside in ("", "*") and not match[3]:
        return AggregateFunction(function="count")
    if not inside:
        raise InvalidStatementError("an expression must stand in the parentheses", text, len(text) - 1)
    return AggregateFunction(function=name, of=inside, distinct=bool(match[3]))


def _refusal(message: str, next_step: str) -> CallerError:
    return CallerError(message, status=422, problem_type="invalid-request", next_step=next_step)
