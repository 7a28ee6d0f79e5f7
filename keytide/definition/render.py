"""Expressions and definitions back to SQL, in one normal form: what `show` prints and what error messages
quote."""

from __future__ import annotations

import json
import re
from collections.abc import Set
from functools import partial
from typing import Final

from keytide.definition.expression import (
    And,
    Binary,
    Call,
    Cast,
    Comparison,
    DistanceTo,
    DocumentId,
    Expression,
    In,
    IsMissing,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    Path,
    PlaceLiteral,
    Predicate,
    Relates,
    RelationName,
    Truth,
    Unnest,
)
from keytide.structure.spatial import GEOGRAPHIC_SRID

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*+")
_RESERVED: Final = frozenset(
    """
    ALL ALTER AND ANY ARRAY AS ASC BEGIN BETWEEN BY CASE CAST COLLATE CONCURRENTLY CONNECT_BY_ROOT CREATE
    CROSS CURRENT_CATALOG CURRENT_DATE CURRENT_SCHEMA CURRENT_TIME CURRENT_TIMESTAMP CURRENT_USER DESC
    DESCRIBE DISTINCT DIV DROP ELSE END ESCAPE EXCEPT EXISTS FALSE FETCH FOR FROM GLOB GRANT GROUP HAVING IF
    ILIKE IN INCLUDE INDEX INNER INSERT INTERSECT INTERVAL INTO IS JOIN LATERAL LIKE LIMIT LOCALTIME
    LOCALTIMESTAMP MISSING NOT NOTNULL NULL OFFSET ON ONLY OR ORDER OUTER OVER PARTITION PARTITIONED_BY
    QUALIFY REGEXP RETURNING REVOKE RLIKE ROLLBACK SELECT SESSION_USER SOME TABLE TABLESAMPLE THEN TRUE
    UNCACHE UNION UNIQUE UNNEST USING VALUES VARIADIC WHEN WHERE WITH XOR
    """.split()  # noqa: SIM905 - a list of words reads better as words
)
"""Words that stand for something else where a bare name may stand (`tests/property/test_statements.py` looks
for more)."""
_IN_COLUMNS: Final = frozenset(
    """
    AND ANY ARRAY AS ASC BETWEEN BY CASE CAST COLLATE CREATE DESC DISTINCT DIV ELSE END ESCAPE EXISTS FALSE
    FROM GROUP HAVING ILIKE IN INCLUDE INDEX INTERVAL IS JOIN LIKE LIMIT MISSING NOT NULL OFFSET ON OR ORDER
    OVER PARTITION SELECT SOME TABLE THEN TRUE UNION UNIQUE UNNEST USING VALUES WHEN WHERE WITH XOR
    """.split()  # noqa: SIM905 - as above
)
"""Those that are quoted in names of columns, by which clients ask: none is added."""
_RELATIONS: Final[dict[RelationName, str]] = {
    "within": "ST_Within",
    "contains": "ST_Contains",
    "intersects": "ST_Intersects",
    "dwithin": "ST_DWithin",
}
_TYPE_NAMES: Final = {"text": "text", "bigint": "bigint", "double": "double precision", "boolean": "boolean"}


def render_name(name: str, *, first: bool = False, reserved: Set[str] = _RESERVED) -> str:
    """A name in a path, quoted when it must be; `id` as the first step is quoted, for bare it is the
    document id."""
    plain = _PLAIN.fullmatch(name) and name.upper() not in reserved and not (first and name == "id")
    return name if plain else '"' + name.replace('"', '""') + '"'


def path_name(path: Path | DocumentId) -> str:
    """A path as users write it without need of quotes, `address.city`: the name of an included column in a
    row."""
    if isinstance(path, DocumentId):
        return "id"
    first, *more = path.steps
    return f"{first}" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in more)


def column_sql(node: Expression) -> str:
    """The name of a column of values: their SQL, as all releases have written it."""
    return render_expression(node, _IN_COLUMNS)


def render_expression(node: Expression, reserved: Set[str] = _RESERVED) -> str:
    """The SQL of a value expression; operators are put in parentheses.

    Args:
        reserved: words that are quoted where they are names, in capitals.
    """
    within = partial(render_expression, reserved=reserved)
    match node:
        case Path(steps=steps):
            text = ""
            for step in steps:
                if isinstance(step, int):
                    text += f"[{step}]"
                else:
                    name = render_name(step, first=not text, reserved=reserved)
                    text += f".{name}" if text else name
            return text
        case DocumentId():
            return "id"
        case Literal(value=value):
            return _constant(value)
        case Unnest(operand=operand):
            return f"UNNEST({within(operand)})"
        case Call(function=function, arguments=arguments):
            return f"{function.upper()}({', '.join(map(within, arguments))})"
        case Cast(operand=operand, type=type_):
            return f"CAST({within(operand)} AS {_TYPE_NAMES[type_]})"
        case Binary(operator=operator, left=left, right=right):
            return f"({within(left)} {operator} {within(right)})"
        case Negate(operand=operand):
            return f"(- {within(operand)})"
        case DistanceTo(operand=operand, place=place):
            return f"ST_Distance({within(operand)}, {render_place(place)})"


def render_predicate(node: Predicate) -> str:
    """The SQL of a condition."""
    match node:
        case Comparison(operator=operator, left=left, right=right):
            return f"{render_expression(left)} {operator} {render_expression(right)}"
        case And(operands=operands):
            return "(" + " AND ".join(map(render_predicate, operands)) + ")"
        case Or(operands=operands):
            return "(" + " OR ".join(map(render_predicate, operands)) + ")"
        case Not(operand=inner):
            return f"NOT ({render_predicate(inner)})"
        case In(operand=operand, choices=choices):
            return f"{render_expression(operand)} IN ({', '.join(map(render_expression, choices))})"
        case Like(operand=operand, pattern=pattern, escape=escape):
            ending = "" if escape == "\\" else f" ESCAPE {_constant(escape)}"
            return f"({render_expression(operand)} LIKE {_constant(pattern)}{ending})"
        case IsNull(operand=operand):
            return f"{render_expression(operand)} IS NULL"
        case IsMissing(operand=operand):
            return f"{render_expression(operand)} IS MISSING"
        case Relates(relation=relation, operand=operand, place=place, metres=metres):
            away = f", {metres!r}" if relation == "dwithin" else ""
            return f"{_RELATIONS[relation]}({render_expression(operand)}, {render_place(place)}{away})"
        case Truth(operand=operand):
            return render_expression(operand)


def render_place(place: PlaceLiteral) -> str:
    """The SQL of a place."""
    system = "" if place.srid == GEOGRAPHIC_SRID else f", {place.srid}"
    geometry = json.loads(place.geojson)
    if geometry["type"] == "Point":
        x, y = geometry["coordinates"]
        return f"ST_Point({x!r}, {y!r}{system})"
    return f"ST_GeomFromGeoJSON({_constant(place.geojson)}{system})"


def _constant(value: bool | int | float | str | None) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return json.dumps(value).upper() if value is None or isinstance(value, bool) else repr(value)
