"""All that can be said of an index, by chance: what is accepted, made anew or altered, is read back as the
same, and every key has a slice there. What is refused, or no statement at all, is refused as such.
"""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from coordinator.statements.altering import altered
from coordinator.statements.partitions import repartitioned
from coordinator.statements.replacing import like_before
from keytide.catalog.partitioning import Partitioning
from keytide.catalog.records import IndexRecord
from keytide.collation import NotIndexableError, encode_part
from keytide.definition.errors import InvalidStatementError
from keytide.definition.index import MAX_SLICES, IndexDefinition
from keytide.definition.statement import (
    AlterIndex,
    CreateIndex,
    MergePartitions,
    SplitPartition,
    SpreadPartition,
    parse_statement,
)
from keytide.errors import CallerError
from keytide.query.parse.statement import parse_query
from tests import share
from tests.property.test_statements import CONDITIONS, KEYS, KNOWN, PATHS, check_round_trips

# --- all that can be said of an index -----------------------------------------------------------------------

VALUES: Final = st.sampled_from(
    [
        *(
            "NULL",
            "FALSE",
            "TRUE",
            "-1e300",
            "-5",
            "-0.0",
            "0",
            "0.5",
            "1",
            "1.0",
            "9007199254740993",
            "1e22",
        ),
        *("123456789012345678901234567890", "''", "'a'", "'it''s'", "'é'", "'zz'", f"'{'x' * 250}'"),
    ]
)
PARTITIONED: Final = st.sampled_from(
    ("a", "b.c", "LOWER(d)", "UNNEST(tags)", "id", "cell", "e + 1", "POINT(x, y)")
)
NUMBERS: Final = st.sampled_from(
    ("0", "1", "2", "3", "5", "64", "1024", "1025", "-1", "99999999999", "x", "1.5")
)


def _listed(strategy: st.SearchStrategy[str], most: int) -> st.SearchStrategy[str]:
    return st.lists(strategy, min_size=1, max_size=most).map(", ".join)


@st.composite
def partitionings(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from(("HASH", "RANGE", "RANGE")))
    text = f"PARTITION BY {kind}({draw(PARTITIONED)})"
    if draw(st.booleans()) and kind == "RANGE":
        text += f" SPLIT AT ({draw(splits())})"
    if draw(st.booleans()):
        each = draw(
            st.sampled_from(("1", "2", "3", "200")) | _listed(st.sampled_from("1234"), 4).map("({})".format)
        )
        text += f" SUBPARTITION BY HASH(id) SLICES {each}"
    return text


@st.composite
def splits(draw: st.DrawFn) -> str:
    """Mostly ascending."""
    values = draw(st.lists(VALUES, min_size=1, max_size=4))
    if draw(st.integers(0, 9)):
        values.sort(key=lambda one: encode_part(parsed_value(one)))
    return ", ".join(values)


def parsed_value(text: str) -> bool | int | float | str | None:
    parsed = parse_statement(f"ALTER INDEX i SPLIT PARTITION 0 AT ({text})")
    assert isinstance(parsed, SplitPartition)
    return parsed.at[0].value


@st.composite
def options(draw: st.DrawFn, names: tuple[str, ...]) -> str:
    said = draw(st.lists(st.sampled_from(names), max_size=3, unique=True))
    texts = []
    for name in said:
        number = name in ("slices", "partitions", "replicas", "srid")
        value = draw(NUMBERS | st.sampled_from(("4326",) if name == "srid" else "2")) if number else "true"
        texts.append(f"{name}={value}")
    return f"({', '.join(texts)})" if texts else ""


@st.composite
def creations(draw: st.DrawFn) -> str:
    """CREATE INDEX statements, of which many contradict themselves."""
    using = draw(st.sampled_from(("", "", "USING btree", "USING hash", "USING spatial")))
    keys = KEYS if "spatial" not in using else st.sampled_from(("a", "POINT(x, y)", "UNNEST(tags)"))
    most = 1 if "spatial" in using and draw(st.integers(0, 9)) else 3
    with_ = draw(options(("slices", "partitions", "replicas", "include_missing", "auto_split", "srid")))
    clauses = [
        "CREATE"
        + draw(st.sampled_from(("", "", " OR REPLACE")))
        + draw(st.sampled_from(("", "", " UNIQUE"))),
        f"INDEX i ON k {using} ({', '.join(draw(st.lists(keys, min_size=1, max_size=most, unique=True)))})",
        f"INCLUDE ({draw(_listed(PATHS, 2))})" if draw(st.booleans()) else "",
        draw(partitionings()) if draw(st.integers(0, 3)) else "",
        f"WITH {with_}" if with_ else "",
        f"WHERE {draw(CONDITIONS)}" if draw(st.booleans()) else "",
    ]
    return " ".join(filter(None, clauses))


@st.composite
def alterations(draw: st.DrawFn) -> str:
    number = draw(st.sampled_from(("0", "1", "2", "3", "1023")))
    said = draw(options(("slices", "partitions", "replicas", "auto_split")))
    return "ALTER INDEX i " + draw(
        st.sampled_from(
            (
                f"SET {said}",
                f"{draw(partitionings())}{' SET ' + said if said else ''}",
                f"PARTITION {number} SET (slices={draw(NUMBERS)})",
                f"SPLIT PARTITION {number} AT ({draw(splits())})",
                f"MERGE PARTITIONS {number}, {int(number) + draw(st.sampled_from((1, 1, -1, 0)))}",
            )
        )
    )


KEY_VALUES: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


def check_slices(definition: IndexDefinition, values: list[object], found: list[bytes]) -> None:
    """See that every key has one slice, of those that a reader looks for it in.

    Args:
        found: encoded values: splits that a build may have found.
    """
    assert sum(definition.slices_by_partition) == definition.slices <= MAX_SLICES
    assert len(definition.slices_by_partition) == definition.partitions
    given = definition.given_splits
    assert not given or len(given) == definition.partitions - 1
    assert list(definition.encoded_splits) == sorted(definition.encoded_splits)
    assert definition.partition_fault is None
    assert definition.slices_fault is None
    ends = (
        sorted(found * definition.partitions)[: definition.partitions - 1]
        if definition.samples_splits
        else []
    )
    for rule in {Partitioning.of(definition), Partitioning.of(definition, ends)}:
        assert rule.starts[-1] == sum(rule.id_shares) == rule.slices == definition.slices
        for value in values:
            try:
                encoded = encode_part(value)  # type: ignore[arg-type]
            except NotIndexableError:
                continue
            slices, one = rule.slices_of_value(encoded), rule.slice_of(encoded, b"id")
            assert slices
            assert set(slices) <= set(range(definition.slices))
            assert rule.unknown if one is None else one in slices
            if one is not None:
                assert slices[0] == rule.starts[rule.partition_of_slice(one)]
            assert set(slices) <= set(rule.slices_of_values(encoded, encoded + b"\xff"))


@settings(max_examples=share.examples(2_000), deadline=None)
@given(
    creations(),
    st.lists(alterations(), max_size=3),
    creations(),
    st.lists(KEY_VALUES, min_size=1, max_size=4),
    st.data(),
)
def test_whatever_index_is_made_or_altered_is_whole(
    text: str, changes: list[str], replacing: str, values: list[object], data: st.DataObject
) -> None:
    try:
        created = parse_statement(text)
    except InvalidStatementError:
        return
    assert isinstance(created, CreateIndex)
    found = data.draw(st.lists(KEY_VALUES.map(_encoded), min_size=1, max_size=3))
    definition = created.definition
    if definition.slices_fault:  # of OR REPLACE, which has as many partitions as what it replaces
        return
    check_round_trips(definition)
    check_slices(definition, values, found)
    for change in changes:
        ends = sorted(found * definition.partitions)[: definition.partitions - 1]
        index = IndexRecord("i-1", definition, data.draw(st.sampled_from(("READY", "FAILED"))), 1, [], "b", 0)
        if definition.samples_splits:
            index = replace(index, splits=tuple(ends))
        try:
            parsed = parse_statement(change)
            assert isinstance(parsed, AlterIndex | SpreadPartition | SplitPartition | MergePartitions)
            definition = altered(repartitioned(index, parsed))
        except CallerError as error:
            check_refusal(error)
            continue
        check_round_trips(definition)
        check_slices(definition, values, found)
    try:
        other = parse_statement(replacing)
        assert isinstance(other, CreateIndex)
        index = IndexRecord("i-1", definition, "READY", 1, [], "b", 0)
        made = like_before(other.definition, other.said, index)
    except CallerError as error:
        check_refusal(error)
        return
    check_round_trips(made)
    check_slices(made, values, found)


def _encoded(value: object) -> bytes:
    try:
        return encode_part(value)  # type: ignore[arg-type]
    except NotIndexableError:
        return encode_part("deep")


def check_refusal(error: CallerError) -> None:
    assert error.message
    assert error.next_step
    assert error.status in (421, 422)


# --- what is no statement -----------------------------------------------------------------------------------

PIECES: Final = st.sampled_from(
    [
        *"()[]{},.;=<>+-*/%|'\"\\:?@#$&~!`\n\t\0²é\u2028\ud800",
        *("''", '""', "'x'", "||", "::", "->>", "--", "/*", "*/", "e'a'", "N'x'", "$$x$$", ":p", "{x}", "$1"),
        *("1_000", ".5", "5.", "1e999", "9" * 5_000, "0x1F", "(" * 3_000, "NOT " * 3_000),
    ]
)
SELECT: Final = (
    "SELECT a, COUNT(*) AS n FROM k WHERE b > 1 AND 'x' = ANY(t) GROUP BY a ORDER BY n DESC LIMIT 5 OFFSET 2"
)


@settings(max_examples=share.examples(3_000), deadline=None)
@given(
    creations() | alterations() | st.just(SELECT),
    st.lists(
        st.tuples(
            st.integers(0, 400), st.integers(0, 8), PIECES | st.sampled_from(KNOWN) | st.text(max_size=3)
        ),
        min_size=1,
        max_size=4,
    ),
)
@example("CREATE INDEX i ON k (POINT(a, b))", [(30, 0, '"" ')])
def test_what_is_no_statement_is_refused_and_nothing_else(
    text: str, edits: list[tuple[int, int, str]]
) -> None:
    for at, cut, new in edits:
        at %= len(text) + 1
        text = f"{text[:at]} {new} {text[at + cut :]}" if cut % 2 else f"{text[:at]}{new}{text[at + cut :]}"
    for parse in (parse_statement, parse_query):
        try:
            made = parse(text)
        except InvalidStatementError as error:
            check_refusal(error)
            continue
        if isinstance(made, CreateIndex) and not made.definition.slices_fault:
            check_round_trips(made.definition)


@pytest.mark.parametrize("text", ["(", "NOT ", "- ", "a[", "CASE WHEN ", "CAST(", "LOWER(", "a.", "a + "])
def test_what_is_nested_without_end_is_refused(text: str) -> None:
    for whole in (f"CREATE INDEX i ON k ({text * 20_000}", f"CREATE INDEX i ON k (a) WHERE {text * 9_000}b"):
        with pytest.raises(InvalidStatementError):
            parse_statement(whole[:99_999])
