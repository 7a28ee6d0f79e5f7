"""The columns of an Arrow stream: their names, and their types, given or inferred. Pure.

Theory of operation
===================
JSON values have no column types, Arrow columns have one. A column is `text`, `bigint` (64 bits), `double`,
`boolean`, or, for everything else, `json`: JSON text. A reader may say which (`types`); else it is inferred:

* from the expression, where that gives one type only (LOWER, CAST, ...);
* for the leading key part, from the first and the last entry that have a value there: keys are ordered by
  type first, so that what lies between is of one type if these two are;
* for all others, and to tell whole numbers from others, from the first rows of every slice.

What is inferred from some rows may be wrong for a later one. Such a value is never squeezed into the column:
the stream ends with `ColumnTypeError`. Only `json` holds everything, so columns of which nothing is known
are that.

Missing is null. So is JSON null, but for `json` columns, where it is the text `null`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from indexer.scan.request.request import ColumnType
from indexer.scan.shape.rows import encode
from keytide.collation import Missing, Value
from keytide.definition.expression import Binary, Call, Cast, DistanceTo, DocumentId, Expression
from keytide.definition.index import IndexDefinition
from keytide.definition.render import column_sql, path_name
from keytide.errors import CallerError
from keytide.model.hints import did_you_mean

INT64: Final = 2**63
_EXACT: Final = 2**53

_UNKNOWN: Final = 0
_TEXT: Final = 1
_WHOLE: Final = 2
_FRACTION: Final = 4
_BOOLEAN: Final = 8
_OTHER: Final = 16
"""What was seen of a column's values; several are a sum."""

_TYPES: Final[dict[int, ColumnType]] = {
    _TEXT: "text",
    _WHOLE: "bigint",
    _FRACTION: "double",
    _WHOLE | _FRACTION: "double",
    _BOOLEAN: "boolean",
}


class ColumnTypeError(CallerError):
    """A value does not fit the type of its Arrow column. The column's name is in `extra`."""

    problem_type = "type-changed"
    status = 422


@dataclass(frozen=True, slots=True)
class ArrowColumn:
    """One column.

    Attributes:
        name: as readers see it.
        part: ordinal of the key part that it shows, None when it shows none.
        path: name of the included column that it shows, None when it shows none. With neither it is the id.
        type: of its values.
    """

    name: str
    part: int | None
    path: str | None
    type: ColumnType

    def misfit(self, value: object) -> ColumnTypeError:
        """The error for a value that does not fit."""
        shown = encode(value).decode() if not isinstance(value, Missing) else "missing"
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return ColumnTypeError(
            f"column {self.name} is {self.type}, and holds {shown}",
            next_step=f"ask again with `types`: {self.name} as json, or another type that fits every value",
            column=self.name,
        )


def columns_of(definition: IndexDefinition, wanted: Sequence[str] | None) -> list[ArrowColumn]:
    """The columns of an index, in the order of its definition. Key parts and included columns are `json`
    until they are typed.

    Args:
        wanted: `key`, `id`, `include`; None for all.
    """
    groups = ("key", "id", "include") if wanted is None else wanted
    found: dict[str, ArrowColumn] = {}
    parts = [column_sql(part.expression) for part in definition.keys]
    if "key" in groups:
        for ordinal, name in enumerate(parts):
            found.setdefault(name, ArrowColumn(name, ordinal, None, "json"))
    if "id" in groups:
        found.setdefault("id", ArrowColumn("id", None, None, "text"))
    if "include" in groups:
        for path in definition.include:
            name, sql = path_name(path), column_sql(path)
            if "key" in groups and sql in parts:
                continue  # the same value, with its own type
            shown = sql if name in found or name == "id" else name
            found.setdefault(shown, ArrowColumn(shown, None, name, "json"))
    return list(found.values())


def static_type(expression: Expression) -> ColumnType | None:
    """The type that every value of an expression has, None when it depends on documents."""
    match expression:
        case DocumentId():
            return "text"
        case Call(function="lower" | "upper"):
            return "text"
        case Call(function="length"):
            return "bigint"
        case DistanceTo():
            return "double"
        case Cast(type=type_):
            return type_
        case Binary(operator="||"):
            return "text"
    return None


def inferred(values: Iterable[Value]) -> ColumnType | None:
    """The narrowest type that holds all the values; None when there is none but nulls."""
    seen = _UNKNOWN
    exact = True
    for value in values:
        if value is None or isinstance(value, Missing):
            continue
        if type(value) is str:
            seen |= _TEXT
        elif type(value) is bool:
            seen |= _BOOLEAN
        elif type(value) is int:
            seen |= _WHOLE if -INT64 <= value < INT64 else _OTHER
            exact = exact and abs(value) <= _EXACT
        elif type(value) is float:
            seen |= _FRACTION
        else:
            seen |= _OTHER
    if seen == _UNKNOWN:
        return None
    if seen & _FRACTION and not exact:
        return "json"
    return _TYPES.get(seen, "json")


def typed(
    columns: Sequence[ArrowColumn],
    definition: IndexDefinition,
    given: Mapping[str, ColumnType],
    rows: Sequence[tuple[Sequence[Value], Mapping[str, Value]]],
    ends: Sequence[Value],
) -> list[ArrowColumn]:
    """The columns with their types.

    Args:
        given: by the reader.
        rows: (key parts, included columns) of some rows.
        ends: the leading key part of the first and the last entry that have a value there.

    Raises:
        CallerError (422): a type for a column that there is not.
    """
    names = [column.name for column in columns]
    unknown = sorted(set(given).difference(names))
    if unknown:
        raise CallerError(
            f"there is no column {unknown[0]}; there are {', '.join(names)}",
            status=422,
            problem_type="unknown-column",
            next_step=did_you_mean(unknown[0], names, "name the columns as the answer's schema does"),
        )
    return [_with_type(column, definition, given, rows, ends) for column in columns]


def _with_type(
    column: ArrowColumn,
    definition: IndexDefinition,
    given: Mapping[str, ColumnType],
    rows: Sequence[tuple[Sequence[Value], Mapping[str, Value]]],
    ends: Sequence[Value],
) -> ArrowColumn:
    if column.part is None and column.path is None:
        found: ColumnType | None = "text"
        if given.get(column.name, "text") not in ("text", "json"):
            raise CallerError(
                "document ids are text",
                status=422,
                problem_type="invalid-request",
                next_step=f"leave {column.name} out of `types`",
            )
    elif column.name in given:
        found = given[column.name]
    elif column.part is not None:
        ordinal = column.part
        found = static_type(definition.keys[ordinal].expression)
        if found is None:
            values = [key[ordinal] for key, _ in rows]
            found = inferred([*values, *ends] if ordinal == 0 else values)
    else:
        found = inferred([include.get(column.path or "") for _, include in rows])
    return ArrowColumn(column.name, column.part, column.path, found or "json")
