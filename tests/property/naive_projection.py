"""A second, slow opinion on what projection must give: json.loads and recursion; nothing shared but the
syntax tree and the encoding of finished keys."""

from __future__ import annotations

import json
import math
import operator
import re
from fractions import Fraction
from typing import Any

from keytide.collation import MISSING, encode_key, encode_part, key_forms
from keytide.definition.expression import (
    And,
    Binary,
    Call,
    Cast,
    Comparison,
    DocumentId,
    In,
    IsMissing,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    Path,
    Truth,
    Unnest,
)
from keytide.definition.index import IndexDefinition


class SkipDocument(Exception):  # noqa: N818 - not an error: an outcome
    """The document goes to the skip ledger; the argument is the reason."""


class LeaveOut(Exception):  # noqa: N818 - not an error: an outcome
    """The definition leaves the document out; the argument is the reason."""


class Unindexable:
    """A number that no index takes."""


def takes_the_value(definition: IndexDefinition) -> bool:
    """Whether an index that is partitioned by id goes by the encoded id, as one by any other value does."""
    alone = len(definition.keys) == 1 and isinstance(definition.keys[0].expression, DocumentId)
    return definition.partition_kind == "range" or (alone and not definition.keys[0].descending)


def entries(
    definition: IndexDefinition, docid: bytes, value: bytes
) -> list[tuple[bytes, bytes, bytes, dict[str, Any]]]:
    """(canonical key, partition key, forms, included columns) of each entry of one document."""
    document = load(value)
    for field in named_fields(definition):
        if field in document and has_unindexable(document[field]):
            raise SkipDocument("not-indexable")
    scope: dict[str, Any] = {"id": docid.decode(), "document": document}
    if definition.where is not None and condition(definition.where, scope) is not True:
        raise LeaveOut("where-not-true")
    unnest = definition.unnest
    scopes = [scope]
    if unnest is not None:
        array = evaluate(unnest.operand, scope)
        if type(array) is list and array:
            scopes = [{**scope, "element": element} for element in array]
        elif definition.include_missing:
            scopes = [{**scope, "element": MISSING}]
        else:
            leading = definition.keys[0].expression
            if not uses_unnest(leading) and evaluate(leading, scope) is MISSING:
                raise LeaveOut("leading-key-missing")
            for part in definition.keys:  # what cannot be a key is in the ledger, elements or not
                if not uses_unnest(part.expression):
                    try:
                        encode_part(evaluate(part.expression, scope))
                    except ValueError:
                        raise SkipDocument("not-indexable") from None
            raise LeaveOut("nothing-to-unnest")
    found: dict[bytes, tuple[bytes, bytes, bytes, dict[str, Any]]] = {}
    for one in scopes:
        parts = [evaluate(part.expression, one) for part in definition.keys]
        if parts[0] is MISSING and not definition.include_missing:
            continue
        try:
            key = encode_key(parts, [part.descending for part in definition.keys])
            partition = (
                docid
                if isinstance(definition.partition, DocumentId) and not takes_the_value(definition)
                else encode_part(evaluate(definition.partition, one))
            )
        except ValueError:
            raise SkipDocument("not-indexable") from None
        if len(key) > 16 * 1024:
            raise SkipDocument("key-too-large")
        included = {}
        for name, path in zip(definition.include_names, definition.include, strict=True):
            column = evaluate(path, scope)
            if column is not MISSING:
                included[name] = column
        found.setdefault(key, (key, partition, key_forms(parts), included))
    if not found:
        raise LeaveOut("leading-key-missing")
    if len(found) > 10_000:
        raise SkipDocument("too-many-elements")
    return list(found.values())


def load(value: bytes) -> dict[str, Any]:
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        raise SkipDocument("not-json") from None
    if nesting(text) > 256:
        raise SkipDocument("too-deep")

    def refuse(name: str) -> Any:
        raise ValueError(name)

    def integer(digits: str) -> Any:
        return Unindexable() if len(digits) > 4300 else int(digits)

    try:
        document = json.loads(text, parse_constant=refuse, parse_int=integer)
    except ValueError:
        raise SkipDocument("not-json") from None
    if not isinstance(document, dict):
        raise SkipDocument("not-an-object")
    return document


def nesting(text: str) -> int:
    deepest = depth = 0
    in_string = escaped = False
    for character in text:
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def has_unindexable(value: Any) -> bool:
    if isinstance(value, Unindexable):
        return True
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, str):
        return any(0xD800 <= ord(character) <= 0xDFFF for character in value)
    if isinstance(value, list):
        return any(map(has_unindexable, value))
    if isinstance(value, dict):
        return any(map(has_unindexable, [*value.keys(), *value.values()]))
    return False


def named_fields(node: Any) -> set[str]:
    if isinstance(node, IndexDefinition):
        inside = [part.expression for part in node.keys] + [node.partition, node.where, *node.include]
        return set().union(*map(named_fields, inside))
    if isinstance(node, Path):
        return {str(node.steps[0])}
    if isinstance(node, tuple):
        return set().union(*map(named_fields, node))
    return set().union(
        *(named_fields(getattr(node, name)) for name in getattr(node, "__struct_fields__", ()))
    )


def uses_unnest(node: Any) -> bool:
    if isinstance(node, tuple):
        return any(map(uses_unnest, node))
    return isinstance(node, Unnest) or any(
        uses_unnest(getattr(node, name)) for name in getattr(node, "__struct_fields__", ())
    )


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def evaluate(node: Any, scope: dict[str, Any]) -> Any:
    if isinstance(node, Literal):
        return node.value
    if isinstance(node, DocumentId):
        return scope["id"]
    if isinstance(node, Unnest):
        return scope["element"]
    if isinstance(node, Path):
        value = scope["document"]
        for step in node.steps:
            try:
                if isinstance(value, dict) != isinstance(step, str) or isinstance(value, str):
                    return MISSING
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return MISSING
        return value
    if isinstance(node, Call) and node.function == "coalesce":
        values = [evaluate(argument, scope) for argument in node.arguments]
        return next((v for v in values if v is not MISSING and v is not None), None)
    operands = [
        evaluate(getattr(node, name), scope) for name in ("operand", "left", "right") if hasattr(node, name)
    ]
    operands += [evaluate(argument, scope) for argument in getattr(node, "arguments", ())]
    if any(operand is MISSING for operand in operands):
        return MISSING
    if isinstance(node, Call):
        if not isinstance(operands[0], str):
            return None
        return {"lower": str.lower, "upper": str.upper, "length": len}[node.function](operands[0])
    if isinstance(node, Cast):
        return cast(operands[0], node.type)
    if isinstance(node, Negate):
        return -operands[0] if is_number(operands[0]) else None
    assert isinstance(node, Binary)
    return binary(node.operator, *operands)


def binary(symbol: str, left: Any, right: Any) -> Any:
    if symbol == "||":
        return left + right if isinstance(left, str) and isinstance(right, str) else None
    if not is_number(left) or not is_number(right):
        return None
    whole = isinstance(left, int) and isinstance(right, int)
    try:
        if symbol in ("/", "%"):
            if right == 0:
                return None
            if not whole:
                result = left / right if symbol == "/" else math.fmod(left, right)
            elif symbol == "/":
                exact = Fraction(left, right)
                result = exact.numerator if exact.denominator == 1 else float(exact)
            else:
                result = left - right * math.trunc(Fraction(left, right))
        else:
            result = {"+": operator.add, "-": operator.sub, "*": operator.mul}[symbol](left, right)
    except OverflowError:
        return None
    return None if isinstance(result, float) and not math.isfinite(result) else result


def cast(value: Any, target: str) -> Any:
    if value is None or isinstance(value, list | dict):
        return None
    try:
        if target == "text":
            if isinstance(value, bool):
                return str(value).lower()
            if isinstance(value, float) and value == math.floor(value):
                value = int(value)
            return value if isinstance(value, str) else str(value) if isinstance(value, int) else repr(value)
        if target == "bigint":
            if isinstance(value, str):
                return int(value) if re.fullmatch(r"\s*[+-]?\d+\s*", value, re.ASCII) else None
            return int(value) if isinstance(value, int) else round(Fraction(value))
        if target == "double":
            if isinstance(value, str) and not re.fullmatch(
                r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*", value, re.ASCII
            ):
                return None
            result = float(value)
            return result if math.isfinite(result) else None
        if isinstance(value, str):
            word = value.strip(" \t\n\r\f\v").lower()
            if word in ("t", "tr", "tru", "true", "y", "ye", "yes", "on", "1"):
                return True
            return False if word in ("f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0") else None
        return bool(value)
    except (ValueError, OverflowError):
        return None


def condition(node: Any, scope: dict[str, Any]) -> bool | None:
    """SQL's three values, the None being unknown."""
    if isinstance(node, And | Or):
        results = [condition(operand, scope) for operand in node.operands]
        decisive = isinstance(node, Or)
        return decisive if decisive in results else None if None in results else not decisive
    if isinstance(node, Not):
        result = condition(node.operand, scope)
        return None if result is None else not result
    if isinstance(node, Comparison):
        return compare(node.operator, evaluate(node.left, scope), evaluate(node.right, scope))
    value = evaluate(node.operand, scope)
    if isinstance(node, In):
        results = [compare("=", value, evaluate(choice, scope)) for choice in node.choices]
        return True if True in results else None if None in results else False
    if isinstance(node, IsMissing):
        return value is MISSING
    if isinstance(node, IsNull):
        return None if value is MISSING else value is None
    if isinstance(node, Truth):
        return value if isinstance(value, bool) else None
    assert isinstance(node, Like)
    if not isinstance(value, str):
        return None
    pattern, rest = "", node.pattern
    while rest:
        if node.escape and rest[0] == node.escape:
            pattern, rest = pattern + re.escape(rest[1]), rest[2:]
        else:
            pattern, rest = pattern + {"%": ".*", "_": "."}.get(rest[0], re.escape(rest[0])), rest[1:]
    return re.fullmatch(pattern, value, re.DOTALL) is not None


def compare(symbol: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None or left is MISSING or right is MISSING:
        return None
    order = ordering(left, right)
    if order == "types":
        return {"=": False, "<>": True}.get(symbol)
    if order == "deep":
        return None
    results: dict[str, bool] = {
        "=": order == 0,
        "<>": order != 0,
        "<": order < 0,
        "<=": order <= 0,
        ">": order > 0,
        ">=": order >= 0,
    }
    return results[symbol]


def ordering(left: Any, right: Any) -> Any:
    """-1, 0, 1, or why there is none."""
    if is_number(left) and is_number(right):
        first, second = Fraction(left), Fraction(right)
        return (first > second) - (first < second)
    if type(left) is not type(right):
        return "types"
    if isinstance(left, str):
        first_points, second_points = list(map(ord, left)), list(map(ord, right))
        return (first_points > second_points) - (first_points < second_points)
    if isinstance(left, bool):
        return int(left) - int(right)
    if depth(left) > 64 or depth(right) > 64:
        return "deep"
    return collate(left, right)


def depth(value: Any) -> int:
    if isinstance(value, list | dict):
        inside = value.values() if isinstance(value, dict) else value
        return 1 + max(map(depth, inside), default=0)
    return 0


def rank(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, bool):
        return 1 + value
    kinds = (int | float, str, list, dict)
    return 3 + next(i for i, kind in enumerate(kinds) if isinstance(value, kind))


def collate(left: Any, right: Any) -> int:
    if rank(left) != rank(right):
        return -1 if rank(left) < rank(right) else 1
    if isinstance(left, list):
        for first, second in zip(left, right, strict=False):
            order = collate(first, second)
            if order:
                return order
        return (len(left) > len(right)) - (len(left) < len(right))
    if isinstance(left, dict):
        if len(left) != len(right):
            return -1 if len(left) < len(right) else 1
        order = collate(sorted(left), sorted(right))
        return order or collate([left[k] for k in sorted(left)], [right[k] for k in sorted(right)])
    if left is None or isinstance(left, bool):
        return 0
    return int(ordering(left, right))
