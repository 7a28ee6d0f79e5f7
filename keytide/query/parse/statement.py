"""SELECT and EXPLAIN SELECT: `parse_query`.

Theory of operation
===================
As with the statements of `keytide.definition`: the frame is read here from sqlglot's tokens, and every
expression in it goes to sqlglot's expression parser, so that errors have their places in the whole text.

A query's rows are the documents of its keyspace. When it says UNNEST(tags) anywhere, they are the pairs of
a document and each distinct element of that array (documents without elements give no row). `x = ANY(tags)`
asks for documents and never doubles them; it stands among the conditions that must all hold.

SELECT DISTINCT is GROUP BY of its columns without aggregates, and is written so here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from sqlglot.tokenizer_core import Token, TokenType

from keytide.definition.expression import (
    And,
    Comparison,
    DistanceTo,
    Expression,
    IsNull,
    Not,
    Predicate,
    Unnest,
    depth,
    identity,
    same,
    walk,
)
from keytide.definition.names import keyspace_name
from keytide.definition.sql import WrittenConstants
from keytide.definition.statement import cut
from keytide.definition.tokens import Cursor
from keytide.query.parse.expressions import AggregateCall, QueryReader, column_name, read_item, split_alias
from keytide.query.parse.long_lists import tokenize
from keytide.query.parse.normal import is_constant, size
from keytide.query.parse.select import Ordering, Output, Select

MAX_NODES: Final = 1_000
MAX_LITERALS: Final = 5_000
MAX_DEPTH: Final = 50
MAX_COLUMNS: Final = 500
"""Limits of one query, so that planning it on every index of a keyspace does not take seconds."""
MAX_ROWS: Final = 2**53
"""What LIMIT and OFFSET may name at most."""
_CLAUSES: Final = ("FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "OFFSET")
_REFUSED: Final = {
    "HAVING": "HAVING is not supported: filter the groups where the answer is read",
    "UNION": "UNION is not supported: send one query after the other with the same `session`",
    "INTERSECT": "INTERSECT is not supported",
    "EXCEPT": "EXCEPT is not supported",
    "WINDOW": "window functions are not supported",
    "FETCH": "FETCH is not supported: write LIMIT n",
    "FOR": "FOR is not supported: a query locks nothing",
    "JOIN": "JOIN is not supported: a query reads one keyspace",
}


def parse_query(text: str) -> Select:
    """The one query in `text`; a semicolon may end it.

    Raises:
        InvalidStatementError: it cannot be understood; says why and where.
    """
    tokens, lists = cut(text, tokenize)
    explain = bool(tokens) and tokens[0].text.upper() == "EXPLAIN"
    return _SelectReader(text, tokens[explain:], lists).read(explain)


class _SelectReader:
    """Reads one SELECT."""

    def __init__(self, text: str, tokens: Sequence[Token], lists: Mapping[int, WrittenConstants]) -> None:
        self._at = Cursor(text, tokens)
        self._reader = QueryReader(text, lists)
        self._aliases: dict[str, Expression | AggregateCall] = {}
        self._outputs: list[tuple[Output, Sequence[Token]]] = []

    def read(self, explain: bool) -> Select:
        at = self._at
        if not at.accept("SELECT"):
            self._no_select(explain)
        distinct_at = at.next_token
        distinct = at.accept("DISTINCT")
        if distinct and at.peek("ON"):
            raise at.error("DISTINCT ON is not supported: write GROUP BY")
        star = self._columns()
        at.expect("FROM")
        keyspace = keyspace_name(at)
        if at.next_token is not None and at.next_token.token_type in (TokenType.COMMA, TokenType.ALIAS):
            raise at.error("a query reads one keyspace, by its own name")
        where = self._where()
        group_by = self._group_by()
        order_by = self._order_by()
        limit, offset = self._limits()
        self._end()
        outputs = tuple(output for output, _ in self._outputs)
        aggregates = any(isinstance(one.value, AggregateCall) for one in outputs)
        aggregates = aggregates or any(isinstance(one.value, AggregateCall) for one, _ in order_by)
        if distinct:
            if star or group_by or aggregates:
                what = "*" if star else "GROUP BY" if group_by else "aggregates"
                raise at.error(f"DISTINCT does not go with {what}", distinct_at, next_step="Leave it out.")
            group_by = self._distinct()
        grouped = distinct or bool(group_by) or aggregates
        if star and grouped:
            raise at.error(
                "* does not go with GROUP BY and aggregates", distinct_at, next_step="Name the columns."
            )
        if not grouped:
            where = _with_distances(where, [one.value for one, _ in order_by])
        select = Select(
            at.text,
            keyspace,
            outputs,
            *self._without_member(where),
            group_by,
            grouped,
            tuple(one for one, _ in order_by),
            limit,
            offset,
            explain,
        )
        self._check(select, order_by, distinct)
        return select

    def _no_select(self, explain: bool) -> None:
        at = self._at
        token = at.next_token
        found = f", not {token.text!r}" if token else ""
        if token is not None and token.text.upper() in ("CREATE", "ALTER", "DROP", "BUILD"):
            step = "POST /v1/statements on the coordinator, or `keytide sql`, runs it."
        else:
            step = "Write SELECT ... FROM keyspace WHERE ... or EXPLAIN SELECT ..."
        raise at.error(f"SELECT must stand here{' behind EXPLAIN' if explain else ''}{found}", next_step=step)

    def _distinct(self) -> tuple[Expression, ...]:
        """The columns as SELECT DISTINCT groups by them."""
        values = [output.value for output, _ in self._outputs]
        found = _unlike(
            [one for one in values if not isinstance(one, AggregateCall) and not is_constant(one)]
        )
        if not found:
            raise self._at.error(
                "DISTINCT needs a column", [self._outputs[0][1][0], self._outputs[-1][1][-1]]
            )
        return found

    # --- lists ------------------------------------------------------------------

    def _clause_here(self, at: Cursor) -> bool:
        token = at.next_token
        if token is not None and token.token_type != TokenType.IDENTIFIER:
            word = token.text.upper()
            if word in _REFUSED and at.peek_clause(word):
                raise at.error(_REFUSED[word])
        return any(at.peek_clause(clause) for clause in _CLAUSES) or at.peek(";")

    def _runs(self, clause: str, word: Token | None) -> list[Sequence[Token]]:
        """The items of a list up to the next clause, none of them empty."""
        at = self._at
        runs: list[Sequence[Token]] = []
        while True:
            run = at.take_until(lambda cursor: cursor.peek(",") or self._clause_here(cursor))
            if not run:
                missing = at.next_token is None and word is not None and not runs
                raise at.error(f"{clause} needs an expression here", word if missing else None)
            runs.append(run)
            if len(runs) > MAX_COLUMNS:
                raise at.error(f"{clause} has at most {MAX_COLUMNS} items", run[0])
            if not at.accept(","):
                return runs

    def _columns(self) -> bool:
        """Read what stands behind SELECT; whether it is `*`."""
        runs = self._runs("SELECT", None)
        if any(len(run) == 1 and run[0].token_type == TokenType.STAR for run in runs):
            if len(runs) > 1:
                raise self._at.error("* stands alone", runs[1][0])
            return True
        for run in runs:
            tokens, alias = split_alias(self._at, run)
            value = read_item(self._at, self._reader, tokens)
            self._limit(value, tokens)
            if alias:
                self._aliases.setdefault(alias, value)
            self._outputs.append((Output(alias or column_name(value), value), tokens))
        return False

    def _where(self) -> Predicate | None:
        at = self._at
        word = at.next_token
        if not at.accept("WHERE"):
            return None
        tokens = at.take_until(self._clause_here)
        if not tokens:
            raise at.error("WHERE needs a condition", word)
        predicate = self._reader.predicate(tokens)
        self._limit(predicate, tokens)
        return predicate

    def _group_by(self) -> tuple[Expression, ...]:
        at = self._at
        word = at.next_token
        if not at.accept("GROUP", "BY"):
            return ()
        found: list[Expression] = []
        for tokens in self._runs("GROUP BY", word):
            value = self._named(tokens)
            if isinstance(value, AggregateCall):
                raise at.error("GROUP BY takes no aggregates", tokens)
            self._limit(value, tokens)
            if is_constant(value):
                raise at.error("a group must say something about the document", tokens)
            found.append(value)
        return _unlike(found)

    def _order_by(self) -> list[tuple[Ordering, Sequence[Token]]]:
        at = self._at
        word = at.next_token
        if not at.accept("ORDER", "BY"):
            return []
        found: list[tuple[Ordering, Sequence[Token]]] = []
        for run in self._runs("ORDER BY", word):
            tokens, nulls = run, ""
            if len(run) > 2 and run[-2].text.upper() == "NULLS" and run[-1].text.upper() in ("FIRST", "LAST"):
                tokens, nulls = run[:-2], run[-1].text.upper()
            descending = tokens[-1].token_type == TokenType.DESC
            if len(tokens) > 1 and tokens[-1].token_type in (TokenType.ASC, TokenType.DESC):
                tokens = tokens[:-1]
            if nulls and (nulls == "LAST") != descending:
                raise at.error(
                    f"NULLS {nulls} is not supported here: missing and null come first, with DESC last",
                    run[-2:],
                )
            value = self._named(tokens)
            self._limit(value, tokens)
            found.append((Ordering(value, descending), tokens))
        return found

    def _named(self, tokens: Sequence[Token]) -> Expression | AggregateCall:
        """An item of GROUP BY or ORDER BY: a column by its alias or position, or an expression."""
        first = tokens[0]
        if len(tokens) == 1 and first.token_type == TokenType.NUMBER:
            position = int(first.text) if re.fullmatch("[0-9]{1,4}", first.text) else 0
            if not 1 <= position <= len(self._outputs):
                raise self._at.error("there is no such column behind SELECT", first)
            return self._outputs[position - 1][0].value
        if len(tokens) == 1 and first.token_type != TokenType.STRING and first.text in self._aliases:
            return self._aliases[first.text]
        return read_item(self._at, self._reader, tokens)

    # --- the end ----------------------------------------------------------------

    def _limits(self) -> tuple[int | None, int]:
        at = self._at
        limit: int | None = None
        offset = 0
        seen: set[str] = set()
        while (word := at.next_token) is not None and (at.peek("LIMIT") or at.peek("OFFSET")):
            clause = word.text.upper()
            at.accept(clause)
            if clause in seen:
                raise at.error(f"{clause} stands twice", word)
            seen.add(clause)
            if clause == "LIMIT" and at.accept("ALL"):
                continue
            tokens = at.take_until(self._clause_here)
            if clause == "OFFSET" and len(tokens) == 2 and tokens[1].text.upper() in ("ROW", "ROWS"):
                tokens = tokens[:1]
            digits = tokens[0].text if len(tokens) == 1 else ""
            if not re.fullmatch("[0-9]{1,16}", digits) or int(digits) > MAX_ROWS:
                raise at.error(f"{clause} takes a whole number, 0 or more", tokens or word)
            if clause == "LIMIT":
                limit = int(digits)
            else:
                offset = int(digits)
        return limit, offset

    def _end(self) -> None:
        at = self._at
        while at.accept(";"):
            pass
        token = at.next_token
        if token is None:
            return
        if token.token_type == TokenType.SELECT or at.peek("EXPLAIN"):
            raise at.error("one query at a time", next_step="Send one statement at a time.")
        refusal = _REFUSED.get(token.text.upper())
        if refusal and token.token_type != TokenType.IDENTIFIER:
            raise at.error(refusal)
        raise at.error(
            f"{token.text!r} does not fit here",
            next_step="The clauses are FROM, WHERE, GROUP BY, ORDER BY, LIMIT and OFFSET, in this order.",
        )

    def _limit(self, value: Expression | AggregateCall | Predicate, tokens: Sequence[Token]) -> None:
        node = value.operand if isinstance(value, AggregateCall) else value
        if node is None:
            return
        nodes, literals = size(node)
        if nodes > MAX_NODES or depth(node) > MAX_DEPTH:
            raise self._at.error("the expression is too large", tokens)
        if literals > MAX_LITERALS:
            raise self._at.error(
                f"a condition has at most {MAX_LITERALS} values",
                tokens,
                next_step="Ask in several queries at one held snapshot.",
            )

    def _without_member(self, where: Predicate | None) -> tuple[Predicate | None, Comparison | None]:
        """The condition without its `= ANY`, and that."""
        members = self._reader.memberships
        if where is None or not members:
            return where, None
        member, node = members[0]
        if len(members) > 1:
            raise self._reader.misplaced(
                members[1][1], "a query has at most one = ANY", "Filter for the other where rows are read."
            )
        rest = _dropped(where, member)
        if rest is where:
            raise self._reader.misplaced(
                node,
                "= ANY must stand among the conditions that all must hold",
                "It cannot stand under OR or NOT.",
            )
        return rest, member

    def _check(
        self, select: Select, order_by: Sequence[tuple[Ordering, Sequence[Token]]], distinct: bool
    ) -> None:
        """What only the whole query shows."""
        at = self._at
        unnests = [n for node in select.nodes() for n in walk(node) if isinstance(n, Unnest)]
        if select.member is not None and unnests:
            raise self._reader.misplaced(
                self._reader.memberships[0][1],
                "= ANY gives one row per document, UNNEST one per element",
                "Write UNNEST(...) = value in its place.",
            )
        if any(not same(one, unnests[0]) for one in unnests):
            raise at.error("a query has UNNEST of one array only", at.next_token)
        if not select.grouped:
            return
        groups = {identity(one) for one in select.group_by}
        named = [(output.value, tokens) for output, tokens in self._outputs]
        for value, tokens in [*named, *((one.value, tokens) for one, tokens in order_by)]:
            if isinstance(value, AggregateCall) or is_constant(value) or identity(value) in groups:
                continue
            if distinct:
                raise at.error("with DISTINCT, ORDER BY takes columns of SELECT", tokens)
            raise at.error(f"{column_name(value)} must stand in GROUP BY, or in an aggregate", tokens)


def _with_distances(
    where: Predicate | None, ordered: Sequence[Expression | AggregateCall]
) -> Predicate | None:
    """A condition, and that what rows are ordered by has a distance: what is no place is near nothing, and
    comes neither first nor last."""
    known = [Not(IsNull(one)) for one in ordered if isinstance(one, DistanceTo)]
    every = [*([] if where is None else [where]), *known]
    return every[0] if len(every) == 1 else And(tuple(every)) if every else None


def _dropped(where: Predicate, member: Comparison) -> Predicate | None:
    """`where` without one of its conjuncts, which is meant by identity; `where` itself if it is none."""
    if where is member:
        return None
    if not isinstance(where, And):
        return where
    kept = [(one, _dropped(one, member)) for one in where.operands]
    if all(left is one for one, left in kept):
        return where
    operands = tuple(left for _, left in kept if left is not None)
    return And(operands) if len(operands) != 1 else operands[0]


def _unlike(values: Sequence[Expression]) -> tuple[Expression, ...]:
    """Each expression once."""
    return tuple({identity(one): one for one in values}.values())
