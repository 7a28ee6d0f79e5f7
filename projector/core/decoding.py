"""JSON documents to the few fields that the indexes name.

Theory of operation
===================
One msgspec struct is made with just the top-level fields that any index of the keyspace needs; decoding
into it skips everything else. That is the fast way, and it is only ever allowed to say yes. Whatever it
does not take goes to `_judge`, which reads with Python's own `json`, slowly, and decides. So what happens
to a document in an index depends on the document and on the fields that this index names, never on which
other indexes there are, on the size of a batch, or on which process reads it (backfill and live projection
must not diverge).

The rules:
* A document is UTF-8 (all of it) and JSON by RFC 8259: no NaN, no comments, no byte order mark; else
  `not-json`.
* Arrays and objects are nested at most MAX_DOCUMENT_DEPTH deep, else `too-deep`. (Decoders stop where
  Python's stack happens to end, which differs between processes; a limit of our own does not.)
* It is an object, else `not-an-object`. Of members with the same name the last counts.
* A field that an index names and that holds, at any depth, a number beyond the doubles, an integer of more
  than MAX_DIGITS digits (its sign counts as one) or a lone surrogate makes the document `not-indexable` for
  that index, and no other.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import msgspec
import numpy as np

from keytide.collation import MISSING

MAX_DOCUMENT_DEPTH: Final = 256
MAX_DIGITS: Final = 4300
"""Python refuses to read longer integers by default, as reading them takes quadratic time; msgspec, by which
nodes and clients read included columns, counts the sign."""

_SHORTEST_DEEP: Final = 2 * MAX_DOCUMENT_DEPTH
"""No shorter document can be nested too deeply: every bracket is closed."""
_STRINGS: Final = re.compile(rb'"[^"\\]*+(?>(?:\\.[^"\\]*+)*)"?', re.DOTALL)
"""Strings, also one that is not closed; never fails after a quote, so it is linear."""
_REFUSALS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(slots=True)
class Decoded:
    """A batch of documents.

    Attributes:
        documents: a struct per value, in order; None for those that are refused.
        refused: position of a value to (reason, detail).
        unindexable: position to field name to detail, for fields that cannot be indexed.
    """

    documents: list[Any]
    refused: dict[int, tuple[str, str]] = field(default_factory=dict)
    unindexable: dict[int, dict[str, str]] = field(default_factory=dict)


def attribute_of(name: str) -> str:
    """The attribute that holds the top-level field `name`: the same in every struct, and plain ASCII."""
    if name.isascii() and name.isidentifier():
        return f"f_{name}"
    return f"x_{name.encode().hex()}"


class DocumentReader:
    """Decodes documents into structs of `fields`; absent fields are MISSING."""

    def __init__(self, fields: Iterable[str]) -> None:
        self.fields = tuple(sorted(set(fields)))
        attributes = [attribute_of(name) for name in self.fields]
        self._type = msgspec.defstruct(
            "Document",
            [(attribute, Any, MISSING) for attribute in attributes],
            rename=dict(zip(attributes, self.fields, strict=True)),
            gc=False,
        )
        self._decode = msgspec.json.Decoder(self._type).decode

    def read(self, values: list[bytes]) -> Decoded:
        """The documents in `values`; nothing in a value makes this fail."""
        result = Decoded([])
        documents = result.documents
        suspects = self._suspects(values)
        if suspects:
            trusted: list[bytes] = list(values)
            for position in suspects:
                trusted[position] = b""  # which no decoder takes, so it will be judged
        else:
            trusted = values
        remaining = iter(trusted)
        while True:
            try:
                documents.extend(map(self._decode, remaining))  # keeps what came before a failure
                return result
            except _REFUSALS:
                position = len(documents)
                documents.append(self._judge(values[position], position, result))

    def _suspects(self, values: list[bytes]) -> list[int]:
        """Positions of values that the fast way might wrongly take: not UTF-8, or nested too deeply."""
        suspects: list[int] = []
        if not all(map(bytes.isascii, values)):
            suspects += [i for i, value in enumerate(values) if not value.isascii() and not _is_utf8(value)]
        if values and max(map(len, values)) > _SHORTEST_DEEP:
            suspects += _maybe_deep(values)
        return suspects

    def _judge(self, value: bytes, position: int, result: Decoded) -> Any:
        """What the fast way did not take: a struct, or None and an entry in `result.refused`."""
        parsed = _parse(value)
        if isinstance(parsed, tuple):
            result.refused[position] = parsed
            return None
        attributes: dict[str, Any] = {}
        for name in self.fields:
            if name in parsed:
                attributes[attribute_of(name)] = parsed[name]
                detail = _unindexable(parsed[name])
                if detail:
                    result.unindexable.setdefault(position, {})[name] = f"{detail} in {name}"
        return self._type(**attributes)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _maybe_deep(values: list[bytes]) -> list[int]:
    """Positions of values with enough opening brackets, within strings or not, to be nested too deeply."""
    positions = [i for i, value in enumerate(values) if len(value) > _SHORTEST_DEEP]
    long = [values[i] for i in positions]
    data = np.frombuffer(b"".join(long), np.uint8)
    opening = np.flatnonzero((data | 0x20) == 0x7B)  # [ and { differ in this bit only
    ends = np.cumsum(np.fromiter(map(len, long), np.int64, len(long)))
    counts = np.diff(np.searchsorted(opening, ends), prepend=0)
    many = np.flatnonzero(counts > MAX_DOCUMENT_DEPTH).tolist()
    return [positions[i] for i in many if nesting(long[i]) > MAX_DOCUMENT_DEPTH]


def nesting(value: bytes) -> int:
    """How deep the brackets of a document go, those within strings aside."""
    bare = np.frombuffer(_STRINGS.sub(b"", value), np.uint8) | 0x20
    steps = (bare == 0x7B).astype(np.int64) - (bare == 0x7D)
    return int(np.cumsum(steps).max(initial=0))


def _parse(value: bytes) -> dict[str, Any] | tuple[str, str]:
    """The object, or (reason, detail)."""
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        return "not-json", f"no UTF-8 at byte {error.start}"
    if nesting(value) > MAX_DOCUMENT_DEPTH:
        return "too-deep", f"arrays and objects are nested more than {MAX_DOCUMENT_DEPTH} deep"
    try:
        parsed = json.loads(text, parse_constant=_refuse_constant, parse_int=_parse_integer)
    except ValueError as error:
        return "not-json", str(error)
    if type(parsed) is not dict:
        return "not-an-object", f"the document is {_KINDS[type(parsed)]}"
    return parsed


_KINDS: Final = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _parse_integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= MAX_DIGITS else math.inf


def _unindexable(value: Any) -> str:
    """Why a field cannot be indexed, or ""."""
    stack = [value]
    while stack:
        value = stack.pop()
        if type(value) is str:
            if not value.isascii() and not _is_encodable(value):
                return "a lone surrogate"
        elif type(value) is float:
            if not math.isfinite(value):
                return "a number out of range"
        elif type(value) is list:
            stack.extend(value)
        elif type(value) is dict:
            stack.extend(value)
            stack.extend(value.values())
    return ""


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
