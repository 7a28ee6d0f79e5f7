"""One Python function per index, generated from its definition: documents in, keys out.

Theory of operation
===================
Walking an expression tree for every document is what makes Python slow, so each definition is written out
once as the plain loop that a person would write for it: local variables for paths, the usual types encoded
in line, everything else by a call. Read one in `CompiledIndex.source`. The text holds names that this
module made up and constants by `repr`; nothing of a statement is pasted into it.

The function takes columns and returns columns:

    project(ordinals, documents, ids) -> (entries, keys, partition_keys, values, skips, left_out)

`ordinals` and `documents` run side by side; `ids` is indexed by ordinal. `entries` has the ordinal of each
entry; `values` maps entry numbers to non-empty values, or has one for each entry; `skips` has (ordinal,
reason, detail). What a document raises concerns that document alone.

Order of decisions for one document: WHERE, then the leading key, then the elements to unnest.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from keytide.collation import MISSING, encode_part, key_forms
from keytide.collation.layout import INVERTED
from keytide.definition import semantics
from keytide.definition.index import IndexDefinition
from keytide.definition.spatial import meaning
from keytide.model.entry import pack_keyed_value, pack_value
from projector.core.outcomes import FAILURES, KeyTooLargeError, TooManyElementsError, explain
from projector.core.writer import OPERATIONS, FunctionWriter

ProjectedColumns = tuple[
    list[int],
    list[bytes],
    list[bytes],
    dict[int, bytes] | list[bytes],
    list[tuple[int, str, str]],
    dict[str, int],
]
ProjectFunction = Callable[[Iterable[int], Iterable[Any], Sequence[bytes]], ProjectedColumns]

_GLOBALS: Final[dict[str, object]] = {
    "MISSING": MISSING,
    "INVERTED": INVERTED,
    "FAILURES": FAILURES,
    "KeyTooLarge": KeyTooLargeError,
    "TooManyElements": TooManyElementsError,
    "explain": explain,
    "encode_part": encode_part,
    "encode_json": msgspec.json.Encoder().encode,
    "key_forms": key_forms,
    "pack_value": pack_value,
    "pack_keyed_value": pack_keyed_value,
    "pack_number": struct.Struct(">BdB").pack,
    "INFINITY": float("inf"),
    "NO_ELEMENTS": [],
    "ONE_MISSING": [MISSING],
    **{
        name: getattr(semantics, name)
        for name in ("equal", "less", "less_or_equal", "negate", *OPERATIONS.values())
    },
    **{name: getattr(semantics, name) for name in ("lower", "upper", "length", "coalesce")},
    "point": meaning.point,
    "check_point": meaning.check_point,
    **{f"cast_{name}": function for name, function in semantics.CASTS.items()},
}


class CompiledIndex:
    """An index's definition, ready to project.

    Attributes:
        definition: what it was made from.
        fields: the top-level fields that it needs.
        source: the text of `project`.
        project: the generated function.
    """

    def __init__(self, definition: IndexDefinition) -> None:
        self.definition = definition
        writer = FunctionWriter(definition)
        self.source = writer.source()
        self.fields = frozenset(writer.fields)
        self.partitioned_by_key = writer.partitioned_by_key
        namespace = {**_GLOBALS, **writer.constants}
        exec(compile(self.source, f"<index {definition.name}>", "exec"), namespace)
        self.project: ProjectFunction = namespace["project"]  # type: ignore[assignment]


def compile_index(definition: IndexDefinition) -> CompiledIndex:
    """The compiled form of `definition`; made once for equal definitions."""
    return _compiled(msgspec.json.encode(definition))


@functools.lru_cache(maxsize=256)
def _compiled(encoded: bytes) -> CompiledIndex:
    return CompiledIndex(msgspec.json.decode(encoded, type=IndexDefinition))
