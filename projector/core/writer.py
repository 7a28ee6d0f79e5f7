"""The text of an index's generated function, line by line (`projector.core.compile` says what it is)."""

from __future__ import annotations

import re
from operator import itemgetter
from typing import Final

from keytide.collation.layout import EXACT_INTEGERS, TAG_NUMBER, TAG_STRING
from keytide.definition.expression import (
    Binary,
    Call,
    Cast,
    DistanceTo,
    DocumentId,
    Expression,
    Literal,
    Negate,
    Path,
    Unnest,
    identity,
    walk,
)
from keytide.definition.index import IndexDefinition
from keytide.definition.spatial.meaning import distance_to
from keytide.errors import invariant
from keytide.structure import keeps_places
from keytide.structure.point_keys import LENGTH as POINT_BYTES
from keytide.structure.point_keys import VALUE_HEAD as POINT_HEAD
from keytide.structure.spatial import partition_keys_of
from projector.core.decoding import attribute_of
from projector.core.outcomes import (
    LEADING_KEY_MISSING,
    MAX_ELEMENTS,
    MAX_ENTRIES_BYTES,
    NOTHING_TO_UNNEST,
    WHERE_NOT_TRUE,
)
from projector.core.predicates import PredicateWriter

OPERATIONS: Final = {
    "+": "add",
    "-": "subtract",
    "*": "multiply",
    "/": "divide",
    "%": "modulo",
    "||": "concatenate",
}


class FunctionWriter:
    """Writes the function of one index, line by line."""

    def __init__(self, definition: IndexDefinition) -> None:
        self._definition = definition
        self._lines: list[str] = []
        self._indent = 0
        self._atoms: dict[bytes, str] = {}
        self._counter = 0
        self.constants: dict[str, object] = {}
        self.fields: set[str] = set()
        parts = definition.keys
        self._structure = definition.structure
        whole = len(parts) == 1 and not parts[0].descending and definition.partition_part == 0
        self.partitioned_by_key = whole and not self._structure.key_in_value
        self._stored_bytes = "len(key)"
        if keeps_places(self._structure):
            self.constants |= {
                "places_of": self._structure.indexed_places,
                "partition_keys_of": partition_keys_of,
                "point_head": POINT_HEAD,
                "first": itemgetter(0),
            }
        elif self._structure.key_in_value:
            self.constants["stored"] = self._structure.stored
            self._stored_bytes = str(self._structure.stored_bytes or "len(key)")

    def source(self) -> str:
        definition = self._definition
        self._line("def project(ordinals, documents, ids):")
        self._indent = 1
        values = "[]" if self._structure.has_places else "{}"
        self._line(f"entries, keys, partition_keys, values, skips = [], [], [], {values}, []")
        self._line("where_not_true = leading_key_missing = nothing_to_unnest = 0")
        if self._structure.has_places:
            self._line("found, values_found = [], []")
        self._line("for ordinal, document in zip(ordinals, documents):")
        self._indent = 2
        self._line("try:")
        self._indent = 3
        if definition.where is not None:
            condition = PredicateWriter(self._atom, self._constant).write(definition.where, True)
            self._line(f"if not {condition}:")
            self._line("    where_not_true += 1")
            self._line("    continue")
        if self._structure.has_places:
            self._entries_of_place()
        elif definition.unnest is None:
            self._one_entry()
        else:
            self._many_entries(definition.unnest)
        self._indent = 1
        partition_keys = "keys" if self.partitioned_by_key else "partition_keys"
        counts = (
            f'{{"{WHERE_NOT_TRUE}": where_not_true, "{LEADING_KEY_MISSING}": leading_key_missing,'
            f' "{NOTHING_TO_UNNEST}": nothing_to_unnest}}'
        )
        self._line(f"return entries, keys, {partition_keys}, values, skips, {counts}")
        return "\n".join(self._lines) + "\n"

    # --- lines and values -----------------------------------------------------------------------------------

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._indent + text)

    def _constant(self, kind: str, value: object) -> str:
        name = f"{kind.upper()}_{len(self.constants)}"
        self.constants[name] = value
        return name

    def _atom(self, node: Expression) -> str:
        """The name of a variable (or constant) that holds the value of `node`; writes the lines that set
        it."""
        key = identity(node)
        if key not in self._atoms:
            self._atoms[key] = self._assign(node)
        return self._atoms[key]

    def _assign(self, node: Expression) -> str:
        match node:
            case Literal(value=value):
                return self._constant("constant", value)
            case Path(steps=steps):
                return self._path(steps)
            case Unnest():
                return "element"
            case DocumentId():
                text = "ids[ordinal].decode()"
            case Call(function=function, arguments=arguments):
                text = f"{function}({', '.join(map(self._atom, arguments))})"
            case DistanceTo(operand=operand):
                text = f"{self._constant('distance', distance_to(node))}({self._atom(operand)})"
            case Cast(operand=operand, type=type_):
                text = f"cast_{type_}({self._atom(operand)})"
            case Negate(operand=operand):
                text = f"negate({self._atom(operand)})"
            case Binary(operator=operator, left=left, right=right):
                text = f"{OPERATIONS[operator]}({self._atom(left)}, {self._atom(right)})"
        return self._variable(text)

    def _variable(self, text: str, hint: str = "v") -> str:
        self._counter += 1
        name = f"{hint}{self._counter}"
        self._line(f"{name} = {text}")
        return name

    def _path(self, steps: tuple[str | int, ...]) -> str:
        first, last = steps[0], steps[-1]
        if len(steps) == 1:
            invariant(isinstance(first, str), "PathShape", "a path begins with a name")
            self.fields.add(str(first))
            return self._variable(f"document.{attribute_of(str(first))}", _hint(str(first)))
        whole = self._atom(Path(steps[:-1]))
        if isinstance(last, int):
            text = f"{whole}[{last}] if type({whole}) is list and len({whole}) > {last} else MISSING"
            return self._variable(text)
        text = f"{whole}.get({last!r}, MISSING) if type({whole}) is dict else MISSING"
        return self._variable(text, _hint(last))

    # --- entries --------------------------------------------------------------------------------------------

    def _one_entry(self) -> None:
        """The rest of the loop for an index without UNNEST."""
        self._line("plain = True")
        leave_out = ("leading_key_missing += 1", "continue")
        for ordinal in range(len(self._definition.keys)):
            self._encode(ordinal, leave_out)
        self._key()
        partition = self._partition_key()
        if self._definition.include or self._structure.key_in_value:
            value = self._value(self._included())
        else:
            self._line("if not plain:")
            self._indent += 1
            value = self._value("")
            self._line(f"if {value}:")
            self._line(f"    values[len(keys)] = {value}")
            self._indent -= 1
        self._except()
        if self._definition.include or self._structure.key_in_value:
            self._line(f"values[len(keys)] = {value}")
        self._line("entries.append(ordinal)")
        self._line(
            "keys.append(stored((key,))[0][0])" if self._structure.key_in_value else "keys.append(key)"
        )
        if partition:
            self._line(f"partition_keys.append({partition})")

    def _entries_of_place(self) -> None:
        """The rest of the function for an index of places: an entry for each cell of one. The cells of all
        documents are found together, behind the loop."""
        definition = self._definition
        said = definition.keys[0].expression
        place = self._atom(said)
        self._line(f"if {place} is MISSING or {place} is None:")
        for node in walk(said):
            if isinstance(node, Call) and node.function == "point":
                x, y = map(self._atom, node.arguments)
                self._line(f"    check_point({x}, {y}, {definition.system})")
        self._line("    leading_key_missing += 1")
        self._line("    continue")
        partition = "None" if definition.partitioned_by_cell else self._partition_key()
        included = self._included() or "None"
        self._except()
        self._line(f"found.append((ordinal, {included}, {partition}))")
        self._line(f"values_found.append({place})")
        self._indent = 1
        self._line("for (ordinal, include, partition_key), place in zip(found, places_of(values_found)):")
        self._indent = 2
        self._line("if type(place) is not tuple:")
        self._line("    skips.append(explain(ordinal, place))")
        self._line("    continue")
        self._line("key, forms, stored = place")
        self._line(f"if include is None and not forms and len(key) == {POINT_BYTES} and len(stored) == 1:")
        self._line("    value = point_head + key")
        self._line("else:")
        several = 'b"".join(stored) if len(stored) > 1 else b""'
        self._line(f"    value = pack_keyed_value(forms, include, key, {several})")
        self._line(f"    if len(stored) * len(value) > {MAX_ENTRIES_BYTES}:")
        self._line("        skips.append(explain(ordinal, TooManyElements()))")
        self._line("        continue")
        self._line("for one in stored:")
        self._line("    values.append(value)")
        self._line("    entries.append(ordinal)")
        self._line("    keys.append(one)")
        if not definition.partitioned_by_cell:
            self._line("    partition_keys.append(partition_key)")
        self._indent = 1
        if definition.partitioned_by_cell:
            self._line("partition_keys = partition_keys_of(keys)")
        self._line("skips.sort(key=first)")

    def _many_entries(self, unnest: Unnest) -> None:
        """The rest of the loop for an index with UNNEST: a loop over the elements within it."""
        definition = self._definition
        self._line("plain = True")
        inner = [i for i, part in enumerate(definition.keys) if _has_unnest(part.expression)]
        for ordinal in range(len(definition.keys)):
            if ordinal not in inner:
                self._encode(ordinal, ("leading_key_missing += 1", "continue"))
        array = self._atom(unnest.operand)
        nothing = "ONE_MISSING" if definition.include_missing else "NO_ELEMENTS"
        self._line(f"elements = {array} if type({array}) is list and {array} else {nothing}")
        self._line("if not elements:")
        self._line("    nothing_to_unnest += 1")
        self._line("    continue")
        if not _has_unnest(definition.partition):
            partition = self._partition_key()
        included = self._included()
        self._line("outer_plain, rows, size = plain, {}, 0")
        self._line("for element in elements:")
        self._indent += 1
        self._line("plain = outer_plain")
        for ordinal in inner:
            self._encode(ordinal, ("continue",))
        self._key()
        self._line("if key in rows:")
        self._line("    continue")
        if _has_unnest(definition.partition):
            partition = self._partition_key()
        value = self._value(included)
        self._line(f"size += {self._stored_bytes} + len({value})")
        self._line(f"if len(rows) >= {MAX_ELEMENTS} or size > {MAX_ENTRIES_BYTES}:")
        self._line("    raise TooManyElements()")
        self._line(f"rows[key] = ({partition or 'key'}, {value})")
        self._indent -= 1
        self._line("if not rows:")
        self._line("    leading_key_missing += 1")
        self._line("    continue")
        self._except()
        if self._structure.key_in_value:
            self._line("for (key,), (partition_key, value) in zip(stored(list(rows)), rows.values()):")
        else:
            self._line("for key, (partition_key, value) in rows.items():")
        self._line("    if value:")
        self._line("        values[len(keys)] = value")
        self._line("    entries.append(ordinal)")
        self._line("    keys.append(key)")
        if partition:
            self._line("    partition_keys.append(partition_key)")

    def _except(self) -> None:
        self._indent = 2
        self._line("except FAILURES as error:")
        self._line("    skips.append(explain(ordinal, error))")
        self._line("    continue")

    def _encode(self, ordinal: int, leave_out: tuple[str, ...]) -> None:
        """Set `k<ordinal>` to the encoded part (and `a<ordinal>`, ascending, when the partitioning needs
        it)."""
        definition = self._definition
        part = definition.keys[ordinal]
        name = self._atom(part.expression)
        target = f"a{ordinal}" if part.descending else f"k{ordinal}"
        tag = f"\\x{TAG_STRING:02x}"
        self._line(f'if type({name}) is str and "\\x00" not in {name}:')
        self._line(f'    {target} = f"{tag}{{{name}}}\\x00\\x01".encode()')
        self._line(f"elif type({name}) is int and 0 <= {name} <= {EXACT_INTEGERS}:")
        self._line(f"    {target} = pack_number({TAG_NUMBER}, {name}, 0)")
        self._line(f"elif type({name}) is float and 0.0 < {name} < INFINITY and not {name}.is_integer():")
        self._line(f"    {target} = pack_number({TAG_NUMBER}, {name}, 0)")
        if ordinal == 0 and not definition.include_missing:
            self._line(f"elif {name} is MISSING:")
            for line in leave_out:
                self._line(f"    {line}")
        self._line("else:")
        self._line(f"    {target} = encode_part({name})")
        self._line("    plain = False")
        if part.descending:
            self._line(f"k{ordinal} = {target}.translate(INVERTED)")

    def _key(self) -> None:
        self._line("key = " + " + ".join(f"k{ordinal}" for ordinal in range(len(self._definition.keys))))
        if (limit := self._structure.key_limit) is not None:
            self._line(f"if len(key) > {limit}:")
            self._line("    raise KeyTooLarge(len(key))")

    def _partition_key(self) -> str:
        """The name of the partition key; "" when it is the key itself."""
        definition = self._definition
        if self.partitioned_by_key:
            return ""
        if definition.raw_id_routes:
            return "ids[ordinal]"
        ordinal = definition.partition_part
        if ordinal is not None:
            return f"a{ordinal}" if definition.keys[ordinal].descending else f"k{ordinal}"
        return self._variable(f"encode_part({self._atom(definition.partition)})", "partition")

    def _included(self) -> str:
        """The name of the variable with the included columns as JSON; "" when there are none."""
        definition = self._definition
        if not definition.include:
            return ""
        columns = [
            (name, self._atom(path))
            for name, path in zip(definition.include_names, definition.include, strict=True)
        ]
        self._line("included = {}")
        for column, name in columns:
            self._line(f"if {name} is not MISSING:")
            self._line(f"    included[{column!r}] = {name}")
        return self._variable("encode_json(included)", "include")

    def _value(self, included: str) -> str:
        """The name of the variable with the entry's value; `included` is what `_included` gave."""
        parts = ", ".join(self._atom(part.expression) for part in self._definition.keys)
        self._line(f'forms = b"" if plain else key_forms(({parts},))')
        if self._structure.key_in_value:
            text = f"pack_keyed_value(forms, {included or None}, key)"
        else:
            text = f"pack_value(forms, {included})" if included else 'pack_value(forms) if forms else b""'
        return self._variable(text, "value")


def _has_unnest(node: Expression) -> bool:
    return any(isinstance(below, Unnest) for below in walk(node))


def _hint(name: str) -> str:
    """A readable beginning for a variable's name."""
    return re.sub("[^a-z]", "", name.lower())[:12] + "_"
