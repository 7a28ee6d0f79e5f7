"""Queries and their plans: what is read of which index, what is left to filter and sort, why not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from keytide.collation import Span, encode_key, equals_span, span, successor
from keytide.definition.errors import InvalidStatementError
from keytide.definition.expression import Comparison, Literal, Path
from keytide.definition.index import IndexDefinition
from keytide.definition.render import render_predicate
from keytide.definition.sql import ExpressionReader
from keytide.definition.statement import CreateIndex, parse_statement
from keytide.definition.values import Dialect
from keytide.query.parse.expressions import FUNCTIONS
from keytide.query.parse.normal import FALSE, TRUE, normal
from keytide.query.parse.statement import parse_query
from keytide.query.plan import implication
from keytide.query.plan.boxes import MAX_BOXES, MAX_SPANS
from keytide.query.plan.choose import NoIndexError, choose, spans_described
from keytide.query.plan.implication import implies
from keytide.query.plan.plan import Candidate, Plan, plan_on
from keytide.query.plan.regions import region


def definition(statement: str) -> IndexDefinition:
    parsed = parse_statement(statement)
    assert isinstance(parsed, CreateIndex)
    return parsed.definition


def planned(index: str, query: str) -> Plan:
    """The plan of a query on an index `CREATE INDEX x ON k <index>`."""
    made = definition(f"CREATE INDEX x ON k {index}")
    plan = plan_on(parse_query(query), Candidate("x", made, 1_000))
    assert isinstance(plan, Plan), plan
    return plan


def refused(index: str, query: str) -> str:
    made = definition(f"CREATE INDEX x ON k {index}")
    plan = plan_on(parse_query(query), Candidate("x", made, 1_000))
    assert not isinstance(plan, Plan)
    return plan.reason


def condition(text: str) -> object:
    return normal(ExpressionReader(text).predicate(Dialect().tokenize(text)))


# --- spans ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "spans", "rest"),
    [
        ("a = 1", [equals_span([1], (), 2)], None),
        ("1.0 = a", [equals_span([1], (), 2)], None),
        ("a = 1 AND b = 'x'", [equals_span([1, "x"], (), 2)], None),
        ("a = 1 AND b > 2", [Span(successor(encode_key([1, 2])), encode_key([1]) + b"\x22")], None),
        ("a >= 2 AND a < 5", [Span(encode_key([2]), encode_key([5]))], None),
        ("a BETWEEN 2 AND 5", [span([2], [5], True, True, (), 2)], None),
        ("a < 5", [Span(b"\x20", encode_key([5]))], None),
        ("NOT a < 5", [Span(encode_key([5]), b"\x22")], None),
        ("NOT a <= 5", [Span(successor(encode_key([5])), b"\x22")], None),
        ("NOT a > 5", [Span(b"\x20", successor(encode_key([5])))], None),
        ("NOT a = 1", [Span(b"\x11", encode_key([1])), Span(successor(encode_key([1])), b"\xff")], None),
        ("NOT a <> 1", [equals_span([1], (), 2)], None),
        ("a > 'x'", [Span(successor(encode_key(["x"])), b"\x31")], None),
        ("a LIKE 'ab%'", [Span(b"\x30ab", b"\x30ac")], None),
        ("a LIKE 'ab%c'", [Span(b"\x30ab", b"\x30ac")], "(a LIKE 'ab%c')"),
        ("a LIKE 'ab'", [equals_span(["ab"], (), 2)], None),
        ("a LIKE '%'", [Span(b"\x30", b"\x31")], None),
        ("a IS NULL", [equals_span([None], (), 2)], None),
        ("a IS NOT NULL", [Span(b"\x11", b"\xff")], None),
        ("a", [equals_span([True], (), 2)], None),
        ("NOT a", [equals_span([False], (), 2)], None),
        ("a IN (3, 1, 1)", [equals_span([1], (), 2), equals_span([3], (), 2)], None),
        ("a = 1 OR a = 3", [equals_span([1], (), 2), equals_span([3], (), 2)], None),
        ("a IN (1, 2) AND b = 5", [equals_span([1, 5], (), 2), equals_span([2, 5], (), 2)], None),
        (
            "(a = 1 AND b = 2) OR (a = 3 AND b = 4)",
            [equals_span([1, 2], (), 2), equals_span([3, 4], (), 2)],
            None,
        ),
        ("a > 1 AND b = 2", [Span(successor(encode_key([1])), b"\x22")], "b = 2"),
        ("a > 1 AND LOWER(b) = 'x'", [Span(successor(encode_key([1])), b"\x22")], "LOWER(b) = 'x'"),
        ("a <> 1", [Span(b"\x11", encode_key([1])), Span(successor(encode_key([1])), b"\xff")], None),
        ("a > 1 AND a > 3 AND NOT a >= 9", [Span(successor(encode_key([3])), encode_key([9]))], None),
        ("a = NULL", [], None),
        ("a = 1 AND a = 2", [], None),
        ("a > 5 AND a < 5", [], None),
        ("a NOT IN (1, NULL)", [], None),
        ("a < FALSE", [], None),
        ("a = 2 * 3 - 5", [equals_span([1], (), 2)], None),
        ("a = 1 AND 1 = 1", [equals_span([1], (), 2)], None),
        ("a = 1 AND c > 0", [equals_span([1], (), 2)], "c > 0"),
    ],
)
def test_spans_and_what_they_leave(where: str, spans: Sequence[Span], rest: str | None) -> None:
    plan = planned("(a, b) INCLUDE (c)", f"SELECT id FROM k WHERE {where}")
    assert list(plan.reading.spans) == list(spans)
    assert (None if plan.filter is None else render_predicate(plan.filter)) == rest


def test_descending_parts_are_read_the_other_way_round() -> None:
    plan = planned("(a, b DESC)", "SELECT id FROM k WHERE a = 1 AND b > 2 AND b <= 5")
    assert list(plan.reading.spans) == [span([1, 2], [1, 5], False, True, (False, True), 2)]
    assert plan.filter is None
    assert spans_described(plan) == ["a = 1, b > 2 and <= 5"]


def test_conditions_on_functions_bound_their_operands_and_are_tested() -> None:
    plan = planned("(a)", "SELECT id FROM k WHERE LOWER(a) = 'x'")
    assert list(plan.reading.spans) == [Span(b"\x30", b"\x31")]
    assert plan.filter is not None
    assert "leaves out documents without a" in refused("(a)", "SELECT id FROM k WHERE COALESCE(a, 1) = 1")


def test_many_values_become_bounded_reads() -> None:
    values = ", ".join(map(str, range(2 * MAX_SPANS)))
    plan = planned("(a, b)", f"SELECT id FROM k WHERE a IN ({values})")
    assert list(plan.reading.spans) == [span([0], [2 * MAX_SPANS - 1], True, True, (), 2)]
    assert plan.filter is not None
    some = ", ".join(map(str, range(40)))
    plan = planned("(a, b)", f"SELECT id FROM k WHERE a IN ({some}) AND b IN ({some})")
    assert 40 <= len(plan.reading.spans) <= MAX_SPANS
    assert plan.filter is not None
    either = " OR ".join(f"(a = {n} AND b = {n})" for n in range(2 * MAX_BOXES))
    plan = planned("(a, b)", f"SELECT id FROM k WHERE {either}")
    assert len(plan.reading.spans) <= MAX_SPANS
    assert plan.filter is not None


def listed(first: int, count: int) -> str:
    return ", ".join(map(str, range(first, first + count)))


@pytest.mark.parametrize(
    ("where", "keys", "spans"),
    [
        (" OR ".join(f"(a = {n} AND b = {n})" for n in range(64)), 64, 64),
        (" OR ".join(f"(a = {n} AND b = {n})" for n in range(65)), 65, 65),
        (" OR ".join(f"(a = {n} AND b = {n})" for n in range(160)), 160, 160),
        (" OR ".join(f"(a = {n} AND b IN ({listed(9 * n, 9)}))" for n in range(55)), 495, 495),
        (" OR ".join(f"(a = {n} AND b IN ({listed(9 * n, 9)}))" for n in range(60)), 540, 1),
        (
            " OR ".join(f"(a = {n} AND b IN ({listed(n, 400 if n == 30 else 1)}))" for n in range(60)),
            459,
            459,
        ),
        (f"a IN ({listed(0, 22)}) AND b IN ({listed(0, 22)})", 484, 484),
        (f"a IN ({listed(0, 100)}) AND b IN ({listed(0, 100)})", 10_000, 1),
    ],
)
def test_a_hash_index_is_read_for_the_keys_that_are_said_and_no_others(
    where: str, keys: int, spans: int
) -> None:
    plan = planned("USING hash (a, b)", f"SELECT id FROM k WHERE {where}")
    assert (len(plan.reading.keys), len(plan.reading.spans), plan.filter) == (keys, spans, None)
    shown = spans_described(plan)
    assert len(shown) <= MAX_BOXES
    assert (shown == [f"the whole index, of which entries with one of {keys} keys"]) == (spans == 1)


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        (f"a IN ({listed(0, 101)}) AND b IN ({listed(0, 100)})", "at most 10000"),
        (
            " OR ".join(f"(a IN ({listed(n, 80)}) AND b IN ({listed(n, 80)}))" for n in (0, 100)),
            "at most 10000",  # of all together
        ),
        ("a = 1 AND b > 2", "by = and IN of all parts of its key"),
        ("a = 1", "by = and IN of all parts of its key"),
        ("a IS NOT MISSING ORDER BY a", "it has no order"),
    ],
)
def test_a_hash_index_says_what_it_does_not_answer(where: str, reason: str) -> None:
    assert reason in refused("USING hash (a, b)", f"SELECT id FROM k WHERE {where}")


def test_a_hash_index_says_that_there_are_too_many_alternatives() -> None:
    either = " AND ".join(f"(a{n} = 1 OR b{n} = 1)" for n in range(10))  # a key, after 1,024 multiplications
    index = f"USING hash ({', '.join(f'a{n}, b{n}' for n in range(10))}) WITH (include_missing=true)"
    assert "at most 1000 alternatives" in refused(index, f"SELECT id FROM k WHERE {either}")


def test_groups_of_a_hash_index_and_rows_of_some_keys_are_sorted() -> None:
    for rest in ("ORDER BY COUNT(*) DESC LIMIT 3", "ORDER BY a"):
        grouped = planned("USING hash (a)", f"SELECT a FROM k WHERE a IS NOT MISSING GROUP BY a {rest}")
        assert (grouped.ordered, grouped.filter) == (False, None)
    rows = planned("USING hash (a)", "SELECT id FROM k WHERE a IN (1, 2) ORDER BY a DESC")
    assert (rows.ordered, len(rows.reading.keys)) == (False, 2)


@pytest.mark.parametrize(
    ("where", "order"), [("a = 1", "a"), ("a = 1 AND b = 2", "b DESC, a"), ("a = 1 AND b = 2", "1 + 1")]
)
def test_rows_of_a_hash_index_are_in_the_order_of_what_is_the_same_of_all(where: str, order: str) -> None:
    """They come in pages then: what is sorted is bounded."""
    index = "USING hash (a)" if "b" not in where else "USING hash (a, b)"
    plan = planned(index, f"SELECT id FROM k WHERE {where} ORDER BY {order}")
    assert plan.ordered


@pytest.mark.parametrize(
    ("index", "where", "count"),
    [
        ("(a, b)", "a = 1", 1),
        ("(a, b)", "a IN (1, 2)", 2),
        ("(a, b)", "b = 1 AND a > 0", 8),
        ("(a, b) PARTITION BY HASH(b)", "a > 0 AND b = 1", 1),
        ("(a, b) PARTITION BY HASH(id)", "a = 1", 8),
        ("(a, b) PARTITION BY HASH(id)", "a = 1 AND id = 'u'", 1),
        ("(a, b) PARTITION BY HASH(c)", "a = 1 AND c = 'x'", 1),
        ("(a, b)", "a = 1 AND a = 2", 0),
    ],
)
def test_equality_on_the_partitioning_asks_one_slice(index: str, where: str, count: int) -> None:
    keys, _, rest = index.partition(")")
    plan = planned(f"{keys}) INCLUDE (c){rest}", f"SELECT id FROM k WHERE {where}")
    assert len(plan.slices) == count


# --- which index ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("a = 5", "a > 3"),
        ("a > 5", "a >= 5"),
        ("a > 5 AND b = 1", "a > 5"),
        ("a BETWEEN 2 AND 3", "a >= 2 AND a < 4"),
        ("a IN (1, 2)", "a = 1 OR a = 2 OR a = 3"),
        ("a = 1 OR a = 2", "a IN (1, 2, 3)"),
        ("a > 1", "a IS NOT NULL"),
        ("a > 1", "a IS NOT MISSING"),
        ("a IS NULL", "a IS NOT MISSING"),
        ("a = 'abc'", "a LIKE 'ab%'"),
        ("a LIKE 'abc%'", "a LIKE 'ab%'"),
        ("a LIKE '%x%'", "a LIKE '%x%'"),
        ("LOWER(a) = 'x'", "a IS NOT NULL"),
        ("a + b > 1", "a IS NOT NULL AND b IS NOT NULL"),
        ("a.b = 1", "a IS NOT NULL"),
        ("a < b", "b > a"),
        ("a", "a = TRUE"),
        ("a > 5", "a <> 3"),
        ("a = 'x'", "a <> 3"),
        ("(a = 1 AND b = 1) OR (a = 2 AND b = 1)", "b = 1"),
        ("(a = 1 OR a = 2) AND c = 1", "a < 5"),
        ("a = 1 AND b = 2", "a = 1 AND b = 2"),
        ("a = 5", "a = 5 OR b = 2"),
        ("1 = 2", "a = 1"),
        ("NOT (a = 1 OR b = 2)", "a <> 1"),
        ("a NOT IN (1, 2)", "a <> 1"),
    ],
)
def test_what_follows(given: str, wanted: str) -> None:
    assert implies(condition(given), condition(wanted))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("a > 3", "a = 5"),
        ("a >= 5", "a > 5"),
        ("a > 1", "a > 'x'"),
        ("a IS NOT MISSING", "a IS NOT NULL"),
        ("COALESCE(a, b) = 1", "a IS NOT NULL"),
        ("a = 1 OR b = 1", "a = 1"),
        ("a IN (1, 4)", "a IN (1, 2, 3)"),
        ("a LIKE 'a%'", "a LIKE 'ab%'"),
        ("a LIKE '%x'", "a LIKE '%y'"),
        ("a <> 1", "a > 1"),
        ("b = 1", "a = 1"),
        ("a = b", "b = c"),
        ("a < b", "a > b"),
        ("a IS MISSING", "a IS NULL"),
        ("a IS NULL OR a = 1", "a = 1"),
    ],
)
def test_what_does_not_follow(given: str, wanted: str) -> None:
    assert not implies(condition(given), condition(wanted))  # type: ignore[arg-type]


def test_long_conditions_are_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against every branch of an index's condition they made a query of 5 kB take 20 s to plan."""
    looked: list[tuple[object, object]] = []

    def counted(node: Any, expression: Any) -> Any:
        looked.append((node, expression))
        return region(node, expression)

    monkeypatch.setattr(implication, "region", counted)
    given: Any = condition(" AND ".join(f"a <> {n}" for n in range(300)))
    wanted: Any = condition(" OR ".join(f"(a = {n} AND b > {n})" for n in range(100)))
    assert not implies(given, wanted)
    assert sum(node is given for node, _ in looked) <= 2
    assert implies(given, condition("a <> 7 OR a = 7 AND b > 7"))  # type: ignore[arg-type]


def test_a_partial_index_serves_what_it_implies_and_need_not_hold_it() -> None:
    index = "(b) WHERE a >= 18 AND s = 'on'"
    plan = planned(index, "SELECT id, s FROM k WHERE b = 1 AND s = 'on' AND a >= 18")
    assert plan.filter is None
    assert plan.outputs[1].value == Literal("on")
    assert "does not follow" in refused("(b) WHERE a >= 18", "SELECT id FROM k WHERE b = 1 AND a > 17")
    assert "does not hold a" in refused("(b) WHERE a >= 18", "SELECT id FROM k WHERE b = 1 AND a > 20")
    assert "does not hold n" in refused("(b) WHERE n = 5", "SELECT n FROM k WHERE b = 1 AND n = 5")


def test_documents_without_the_leading_key_must_be_excluded() -> None:
    assert "leaves out" in refused("(a, b)", "SELECT id FROM k WHERE b = 1")
    assert "leaves out" in refused("(a, b)", "SELECT id FROM k WHERE a IS MISSING")
    assert "leaves out" in refused("(a, b)", "SELECT id FROM k WHERE a = 1 OR b = 1")
    planned("(a, b)", "SELECT id FROM k WHERE a IS NOT MISSING")
    planned("(a, b) WITH (include_missing=true)", "SELECT id FROM k WHERE a IS MISSING")
    planned("(id)", "SELECT id FROM k")
    planned("(COALESCE(a, b))", "SELECT id FROM k")


def test_elements_never_double_documents() -> None:
    assert "element" in refused("(UNNEST(t))", "SELECT id FROM k")
    assert "element" in refused("(a)", "SELECT id FROM k WHERE 'x' = ANY(t)")
    assert "element" in refused("(UNNEST(s))", "SELECT id FROM k WHERE 'x' = ANY(t)")
    assert "distinct" in refused("(LOWER(UNNEST(t)))", "SELECT UNNEST(t) FROM k")
    member = planned("(UNNEST(t), a)", "SELECT id FROM k WHERE 'x' = ANY(t) AND a > 1")
    assert spans_described(member) == ["UNNEST(t) = 'x', a > 1"]
    elements = planned("(UNNEST(t)) WITH (include_missing=true)", "SELECT UNNEST(t) FROM k")
    assert spans_described(elements) == ["UNNEST(t) is not missing"]


@pytest.mark.parametrize(
    ("index", "rest", "expected"),
    [
        ("(a, b)", "a > 0 ORDER BY a", (True, False)),
        ("(a, b)", "a > 0 ORDER BY a DESC", (True, True)),
        ("(a, b)", "a > 0 ORDER BY a, b", (True, False)),
        ("(a, b)", "a > 0 ORDER BY a, b DESC", (False, False)),
        ("(a, b DESC)", "a > 0 ORDER BY a, b DESC", (True, False)),
        ("(a, b DESC)", "a > 0 ORDER BY a DESC, b", (True, True)),
        ("(a, b)", "a > 0 ORDER BY b", (False, False)),
        ("(a, b)", "a = 1 ORDER BY b", (True, False)),
        ("(a, b)", "a = 1 ORDER BY a DESC, b", (True, False)),
        ("(a, b)", "a IN (1, 2) ORDER BY b", (False, False)),
        ("(a, b)", "a IN (1, 2) ORDER BY a, b", (True, False)),
        ("(a, b)", "a = 1 AND b = 2 ORDER BY id DESC", (True, True)),
        ("(a, b)", "a = 1 ORDER BY b, id", (True, False)),
        ("(a, b)", "a = 1 ORDER BY b, id DESC", (False, False)),
        ("(a, b)", "a = 1 ORDER BY id", (False, False)),
        ("(a, b)", "a = 1 ORDER BY b, b DESC, 1", (True, False)),
        ("(a, c, b)", "a > 0 AND c = 1 ORDER BY a, b", (True, False)),
    ],
)
def test_the_order_of_keys_serves(index: str, rest: str, expected: tuple[bool, bool]) -> None:
    plan = planned(index, f"SELECT 7, id FROM k WHERE {rest}")
    assert (plan.ordered, plan.reverse) == expected


def best(query: str, *indexes: str) -> str:
    made = [definition(f"CREATE INDEX i{at} ON k {index}") for at, index in enumerate(indexes)]
    plan, _, _ = choose(parse_query(query), [Candidate(one.name, one, 1_000) for one in made])
    return plan.index.name


def test_the_best_index_is_chosen() -> None:
    assert best("SELECT id FROM k WHERE a = 1 AND b = 2", "(a)  INCLUDE (b)", "(a, b)") == "i1"
    assert best("SELECT id FROM k WHERE a > 1 AND b = 2", "(a, b)", "(b, a)") == "i1"
    assert best("SELECT id FROM k WHERE a = 1 ORDER BY b", "(a, c, b)", "(a, b)") == "i1"
    assert (
        best(
            "SELECT id FROM k WHERE a > 1 ORDER BY b LIMIT 5",
            "(a) INCLUDE (b)",
            "(b, a) WITH (include_missing=true)",
        )
        == "i1"
    )
    assert best("SELECT id FROM k WHERE a = 1", "(a) PARTITION BY HASH(id)", "(a)") == "i1"
    assert best("SELECT id FROM k WHERE a = 1", "(a, b)", "(a)") == "i1"
    assert best("SELECT id FROM k WHERE a = 1", "(a)", "(a)") == "i0"


def test_indexes_of_other_keyspaces_are_not_looked_at() -> None:
    other = definition("CREATE INDEX x ON elsewhere (a)")
    with pytest.raises(NoIndexError) as caught:
        choose(parse_query("SELECT id FROM k WHERE a = 1"), [Candidate("x", other)])
    assert caught.value.extra["indexes"] == {}
    assert caught.value.extra["create_index"] == "CREATE INDEX by_a ON k (a)"


@pytest.mark.parametrize(
    ("query", "statement"),
    [
        ("SELECT x FROM k WHERE c > 1 AND b = 2", "CREATE INDEX by_b_c ON k (b, c) INCLUDE (x)"),
        (
            "SELECT x FROM k WHERE c > 1 ORDER BY y DESC",
            "CREATE INDEX by_y_desc_c ON k (y DESC, c) INCLUDE (x) WITH (include_missing=true)",
        ),
        ("SELECT a.b FROM k", "CREATE INDEX by_id ON k (id) INCLUDE (a.b)"),
        ("SELECT SUM(n) FROM k WHERE c = 1 GROUP BY d", "CREATE INDEX by_c_d ON k (c, d) INCLUDE (n)"),
        ("SELECT id FROM k WHERE 'x' = ANY(t) AND a = 1", "CREATE INDEX by_unnest_t_a ON k (UNNEST(t), a)"),
        ("SELECT LOWER(UNNEST(t)) FROM k WHERE a = 1", "CREATE INDEX by_a_unnest_t ON k (a, UNNEST(t))"),
        (
            'SELECT a.b, "a.b" FROM "my-topic"',
            'CREATE INDEX by_id_a_b ON "my-topic" (id, "a.b") INCLUDE (a.b)',
        ),
        ("SELECT id FROM k WHERE LOWER(n) = 'x'", "CREATE INDEX by_lower_n ON k (LOWER(n))"),
    ],
)
def test_the_refusal_has_the_index_that_would_serve(query: str, statement: str) -> None:
    with pytest.raises(NoIndexError) as caught:
        choose(parse_query(query), [])
    assert caught.value.extra["create_index"] == statement


@pytest.mark.parametrize(
    ("beside", "limited"),
    [
        ("USING hash (a)", True),
        ("USING hash (b, LOWER(a))", False),
        ("USING hash (b)", False),
        ("USING spatial (a)", False),
        ("(b)", False),
    ],
)
def test_a_btree_in_place_of_a_hash_index_is_told_to_leave_out_long_keys(beside: str, limited: bool) -> None:
    """Only of a key that the other one has: who makes an index anyway is told by the reference."""
    there = Candidate("x", definition(f"CREATE INDEX x ON k {beside}"))
    with pytest.raises(NoIndexError) as caught:
        choose(parse_query("SELECT id FROM k WHERE a > 'x'"), [there])
    assert ("leaves out keys of more than 16 KiB" in caught.value.next_step) is limited


def test_suggested_names_are_not_taken() -> None:
    taken = definition("CREATE INDEX by_a ON k (b)")
    with pytest.raises(NoIndexError) as caught:
        choose(parse_query("SELECT id FROM k WHERE a = 1"), [Candidate("by_a", taken)])
    assert "by_a_2" in caught.value.extra["create_index"]


# --- statements -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason", "under"),
    [
        ("SELECT a, FROM k", "needs an expression", "FROM"),
        ("SELECT a FROM k, l", "one keyspace", ","),
        ("SELECT a FROM k x", "does not fit", "x"),
        ("SELECT a FROM k WHERE", "needs a condition", "WHERE"),
        ("SELECT a FROM k WHERE a ==", "missing", "=="),
        ("SELECT a FROM k HAVING a", "HAVING", "HAVING"),
        ("SELECT a FROM k JOIN l", "JOIN", "JOIN"),
        ("SELECT a FROM k LIMIT -1", "whole number", "-1"),
        ("SELECT a FROM k LIMIT 1 LIMIT 2", "twice", "LIMIT"),
        ("SELECT SUM(a) + 1 FROM k", "cannot stand here", "SUM(a"),
        ("SELECT SUM(*) FROM k", "not \\*", "*"),
        ("SELECT SUM(DISTINCT a) FROM k", "DISTINCT", "DISTINCT"),
        ("SELECT a FROM k GROUP BY b", "must stand in GROUP BY", "a"),
        ("SELECT a, COUNT(*) FROM k", "must stand in GROUP BY", "a"),
        ("SELECT DISTINCT a FROM k ORDER BY b", "columns of SELECT", "b"),
        ("SELECT DISTINCT * FROM k", "DISTINCT", "DISTINCT"),
        ("SELECT a FROM k ORDER BY 2", "no such column", "2"),
        ("SELECT a FROM k ORDER BY a NULLS LAST", "NULLS LAST", "NULLS LAST"),
        ("SELECT a FROM k GROUP BY COUNT(*)", "no aggregates", "COUNT(*)"),
        ("SELECT a FROM k WHERE b = 1 OR 'x' = ANY(t)", "all must hold", "'x'"),
        ("SELECT a FROM k WHERE 'x' < ANY(t)", "= only", "'x'"),
        ("SELECT UNNEST(t) FROM k WHERE 'x' = ANY(t)", "one row per document", "'x'"),
        ("SELECT a FROM k; SELECT b FROM k", "one query", "SELECT"),
        ("EXPLAIN ANALYZE SELECT a FROM k", "behind EXPLAIN", "ANALYZE"),
        ("SELECT a FROM k WHERE a = 'x", "not closed", "'"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, reason: str, under: str) -> None:
    with pytest.raises(InvalidStatementError, match=reason) as caught:
        parse_query(text)
    shown, marks = caught.value.caret.split("\n")
    assert shown[marks.index("^") :].startswith(under[:1])
    assert text[caught.value.column - 1 :].startswith(under[: marks.count("^")])


@pytest.mark.parametrize(
    "name", ["BOOL_AND", "NUMBERS"]
)  # one that the parser knows by another name, and one of ours
def test_an_aggregate_that_is_new_is_told_where_it_stands(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(FUNCTIONS, name, name.lower())
    with pytest.raises(InvalidStatementError, match=f"{name} cannot stand here"):
        parse_query(f"SELECT {name}(a) + 1 FROM k")


def test_names_positions_and_aliases() -> None:
    query = parse_query(
        'SELECT a.b AS n, COUNT(*), COUNT(DISTINCT "c d") FROM k GROUP BY n ORDER BY 2 DESC, n;'
    )
    assert [one.name for one in query.outputs] == ["n", "COUNT(*)", 'COUNT(DISTINCT "c d")']
    assert query.group_by == (Path(("a", "b")),)
    assert [one.descending for one in query.order_by] == [True, False]
    assert query.order_by[0].value == query.outputs[1].value


def test_limits_of_one_query() -> None:
    some = "(" * 15 + "a = 1" + ")" * 15
    assert parse_query(f"SELECT a FROM k WHERE {some}").where == Comparison("=", Path(("a",)), Literal(1))
    with pytest.raises(InvalidStatementError, match="too deeply"):
        parse_query(f"SELECT a FROM k WHERE {'(' * 5_000}a = 1{')' * 5_000}")
    with pytest.raises(InvalidStatementError, match="too large"):
        parse_query("SELECT a FROM k WHERE " + " OR ".join(f"a{n} = 1" for n in range(1_000)))
    with pytest.raises(InvalidStatementError, match="at most"):
        parse_query(f"SELECT {', '.join(f'a{n}' for n in range(600))} FROM k")


def test_normal_forms() -> None:
    assert condition("1 = 1") == TRUE
    assert condition("a = NULL OR 2 < 1") == FALSE
    assert render_predicate(condition("NOT (a = 1 AND (b < 2 OR c IS NULL))")) == (  # type: ignore[arg-type]
        "(a <> 1 OR (b >= 2 AND NOT (c IS NULL)))"
    )
    huge = condition(f"a = {'9' * 4000} * {'9' * 4000}")
    assert not region(huge, Path(("a",))).exact  # type: ignore[arg-type]
