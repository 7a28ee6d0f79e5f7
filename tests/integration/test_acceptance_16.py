"""Acceptance 16: no torn read, in any form of reading, on the real parts and two nodes.

Every document has three amounts, each an entry in another slice, on both nodes, and their sum never changes:
each write moves money between them. So all that a reader sees of one moment must be, for every document,
three entries of one version (`v`) whose amounts add up; and sums over everything are constant. A second pair
of indexes has the two sides of an account: their sum is constant at every snapshot number that both have.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from keytide.client import Client
from keytide.client.protocol.answers import Row
from tests.integration.world import World, Writer
from tests.unit.scan_world import Doc, definition_of, slice_of

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(900)]

TOPIC = "torn"
DOCUMENTS = 20
TOTAL = 3_000_000
SLICES = 6
MONEY, LEFT, RIGHT = "money", "left_side", "right_side"
MONEY_STATEMENT = (
    f"CREATE INDEX {MONEY} ON {TOPIC} (UNNEST(amounts)) INCLUDE (v) WITH (slices={SLICES}, defer_build=true)"
)
SIDE_STATEMENT = "CREATE INDEX {0} ON {1} ({2}, v) WITH (slices=4, defer_build=true)"
AMOUNT = "UNNEST(amounts)"
FIGURES = ["count", f"sum({AMOUNT})", "count(distinct v)"]
EXPECTED = [3 * DOCUMENTS, TOTAL * DOCUMENTS, DOCUMENTS]
PACE = 1_500
AT_LEAST_S, AT_LEAST_ROUNDS, AT_MOST_S = 8.0, 4, 240.0
EVENTS_PER_TAIL = 15

Found = Iterable[tuple[Any, str, Any]]
"""(amount, document id, version) of each entry that was seen."""


def torn(found: Found) -> str:
    """What is wrong with what was seen of one moment; empty when every document is whole."""
    entries: dict[str, list[tuple[Any, Any]]] = {}
    for amount, id_, version in found:
        entries.setdefault(id_, []).append((amount, version))
    if entries.keys() != {f"d{number}" for number in range(DOCUMENTS)}:
        return f"documents {sorted(entries)}"
    for id_, seen in entries.items():
        if len(seen) != 3 or len({version for _, version in seen}) != 1:
            return f"{id_} in several versions, or not whole: {seen}"
        if sum(amount for amount, _ in seen) != TOTAL:
            return f"the amounts of {id_} do not add up: {seen}"
    return ""


def differs(found: Any, expected: Any = EXPECTED) -> str:
    return "" if found == expected else f"{found}, not {expected}"


def of_rows(rows: Iterable[Row]) -> Found:
    return [(row.key[0], row.id, row.include["v"]) for row in rows]


# --- the forms of reading: each gives what is wrong with what it saw ---------------------------------------


def one_page(client: Client) -> str:
    return torn(of_rows(client.page(MONEY, limit=1_000).rows))


def two_stretches(client: Client) -> str:
    middle = random.randrange(TOTAL)
    page = client.page(MONEY, spans=[{"high": [middle]}, {"low": [middle - 1_000]}], limit=1_000)
    return torn(of_rows(page.rows))


def pages(client: Client) -> str:
    return torn(of_rows(client.scan(MONEY, page_size=7)))


def pages_backwards(client: Client) -> str:
    return torn(of_rows(client.scan(MONEY, page_size=11, reverse=True)))


def count(client: Client) -> str:
    return differs(client.count(MONEY).count, 3 * DOCUMENTS)


def sums(client: Client) -> str:
    (group,) = client.aggregate(MONEY, FIGURES).groups
    return differs([group.values[name] for name in FIGURES])


def groups(client: Client) -> str:
    names = ["count", f"sum({AMOUNT})", "min(v)", "max(v)"]
    found = client.aggregate(MONEY, names, group_by=["id"]).groups
    for group in found:
        entries, total, least, greatest = (group.values[name] for name in names)
        if (entries, total) != (3, TOTAL) or least != greatest:
            return f"{group}"
    return differs(len(found), DOCUMENTS)


def lines(client: Client) -> str:
    rows = [json.loads(line) for part in client.scan(MONEY).ndjson() for line in part.splitlines()]
    return torn((row["key"][0], row["id"], row["include"]["v"]) for row in rows)


def arrow(client: Client) -> str:
    return of_table(client.scan(MONEY).to_arrow())


def arrow_in_any_order(client: Client) -> str:
    return of_table(client.scan(MONEY).to_arrow(any_order=True))


def of_table(table: Any) -> str:
    columns = [table.column(name).to_pylist() for name in (AMOUNT, "id", "v")]
    return torn(zip(*columns, strict=True))


def held(client: Client) -> str:
    """Slice by slice, and then as a whole: all at one held snapshot."""
    with client.snapshot(MONEY, lease_s=30) as at:
        entries = [entry for one in range(SLICES) for entry in of_rows(at.scan(slices=[one]))]
        (group,) = at.aggregate(FIGURES).groups
        return torn(entries) or differs([group.values[name] for name in FIGURES])


def query_rows(client: Client) -> str:
    query = client.query(f"SELECT {AMOUNT}, id, v FROM {TOPIC} WHERE {AMOUNT} >= 0", page_size=13)
    return torn((amount, id_, version) for amount, id_, version in query)


def query_sums(client: Client) -> str:
    (row,) = client.query(
        f"SELECT COUNT(*), SUM({AMOUNT}), COUNT(DISTINCT v) FROM {TOPIC} WHERE {AMOUNT} IS NOT MISSING"
    )
    return differs(row)


def query_groups(client: Client) -> str:
    query = client.query(
        f"SELECT id, COUNT(*), SUM({AMOUNT}), MIN(v), MAX(v) FROM {TOPIC} WHERE {AMOUNT} >= 0 "
        "GROUP BY id ORDER BY id"
    )
    rows = query.to_list()
    wrong = [row for row in rows if row[1:3] != [3, TOTAL] or row[3] != row[4]]
    expected = sorted(f"d{number}" for number in range(DOCUMENTS))
    return f"{wrong}" if wrong else differs([row[0] for row in rows], expected)


FORMS: list[Callable[[Client], str]] = [
    one_page, two_stretches, pages, pages_backwards, count, sums, groups, lines, arrow, arrow_in_any_order,
    held, query_rows, query_sums, query_groups,
]  # fmt: skip


@dataclass
class Seen:
    """What all readers saw together."""

    wrong: dict[str, str] = field(default_factory=dict)
    reads: Counter[tuple[str, int]] = field(default_factory=Counter)
    overtaken: int = 0
    sides: dict[str, dict[int, int]] = field(default_factory=lambda: {LEFT: {}, RIGHT: {}})

    def told(self, form: str, node: int, story: str) -> None:
        self.reads[form, node] += 1
        if story:
            self.wrong.setdefault(form, story)


# --- readers ------------------------------------------------------------------------------------------------


def read(url: str, node: int, seen: Seen, until: Callable[[int], bool]) -> None:
    """Every form, round after round, at one node."""
    rounds = 0
    with Client(url) as client:
        while not until(rounds):
            for form in FORMS:
                seen.told(form.__name__, node, form(client))
            walk = client.scan(MONEY, page_size=20)
            first = next(walk)  # the rest is read when there are newer snapshots
            sides(client, seen)
            newer = client.count(MONEY).snapshot
            seen.told("pages, slowly", node, torn(of_rows([first, *walk])))
            seen.overtaken += newer != walk.snapshot
            rounds += 1


def sides(client: Client, seen: Seen) -> None:
    """Sums of both sides, each with the number of its snapshot."""
    for index, side in ((LEFT, "lhs"), (RIGHT, "rhs")) * 3:
        answer = client.aggregate(index, [f"sum({side})"])
        (group,) = answer.groups
        assert answer.snapshot is not None
        seen.sides[index][answer.snapshot] = group.values[f"sum({side})"]


def follow(urls: list[str], node: int, seen: Seen, until: Callable[[int], bool]) -> None:
    """A tail's state is whole after every event; now and then it goes on at the other node."""
    state: dict[tuple[Any, str], Any] = {}
    token: str | None = None
    rounds = 0
    while not until(rounds):
        url = urls[(node + rounds) % len(urls)]
        with Client(url) as client, client.tail(MONEY, initial=token is None, resume=token) as tail:
            for number, event in enumerate(tail):
                story = ""
                for row in event.removed:
                    version = state.pop((row.key[0], row.id), None)
                    if version != row.include["v"]:
                        story = f"{row} is removed, but what was told is {version}"
                for row in event.added:
                    if (row.key[0], row.id) in state:
                        story = f"{row} is added, and was there"
                    state[row.key[0], row.id] = row.include["v"]
                entries = [(amount, id_, version) for (amount, id_), version in state.items()]
                seen.told("tail", node, story or torn(entries))
                if number >= EVENTS_PER_TAIL:
                    break
            token = tail.token
        rounds += 1


@pytest.fixture(scope="module")
def world(shared_world: World) -> World:
    return shared_world


def nodes_of_slices(world: World) -> dict[int, str]:
    with world.client() as client:
        story = client.count(MONEY, explain=True).explain
    assert story is not None
    return {one["slice"]: one["node"] for one in story["slices"]}


def transfers(nodes: dict[int, str]) -> Callable[[random.Random, int], tuple[str, Any]]:
    """Changes of documents whose amounts lie in three slices, not all on one node."""
    definition = definition_of(MONEY_STATEMENT)

    def change(chance: random.Random, number: int) -> tuple[str, Any]:
        id_ = f"d{number % DOCUMENTS}"
        while True:
            first, second = chance.randrange(TOTAL), chance.randrange(TOTAL)
            amounts = [min(first, second), abs(first - second), TOTAL - max(first, second)]
            slices = {slice_of(definition, Doc([amount], id_)) for amount in amounts}
            if len(slices) == 3 and len({nodes[one] for one in slices}) == 2:
                break
        return id_, {"amounts": amounts, "v": number, "lhs": first, "rhs": TOTAL - first}

    return change


def test_16_no_form_of_reading_sees_two_versions_of_a_document(world: World) -> None:
    world.make_topic(TOPIC)
    world.sql(MONEY_STATEMENT)
    for name, side in ((LEFT, "lhs"), (RIGHT, "rhs")):
        world.sql(SIDE_STATEMENT.format(name, TOPIC, side))
    world.wait_ready(world.build(MONEY, LEFT, RIGHT))
    nodes = nodes_of_slices(world)
    assert (len(nodes), len(set(nodes.values()))) == (SLICES, 2)
    writer = Writer(world.bootstrap, TOPIC, 16, transfers(nodes), per_second=PACE)
    writer.write(DOCUMENTS)
    with world.client() as client:
        at_least = {str(partition): offset for partition, offset in world.ends(TOPIC).items()}
        for index in (MONEY, LEFT, RIGHT):
            client.count(index, at_least=at_least, timeout_ms=60_000)
    seen = Seen()
    began = time.monotonic()

    def until(rounds: int) -> bool:
        taken = time.monotonic() - began
        return (taken > AT_LEAST_S and rounds >= AT_LEAST_ROUNDS) or taken > AT_MOST_S

    errors: list[BaseException] = []

    def guarded(work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    urls = world.cluster.node_urls
    with writer:
        threads = [
            threading.Thread(target=guarded, args=arguments, daemon=True)
            for node, url in enumerate(urls)
            for arguments in ((read, url, node, seen, until), (follow, urls, node, seen, until))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, began + 2 * AT_MOST_S - time.monotonic()))
            assert not thread.is_alive()
    if errors:
        raise errors[0]
    both = seen.sides[LEFT].keys() & seen.sides[RIGHT].keys()
    for number in both:
        total = seen.sides[LEFT][number] + seen.sides[RIGHT][number]
        seen.told("two indexes", 0, differs(total, DOCUMENTS * TOTAL))
    assert not seen.wrong, "\n".join(f"{form}: {story}" for form, story in seen.wrong.items())
    # It was read while documents moved, by every form at both nodes.
    assert seen.overtaken > 0, "no snapshot was published while pages were walked"
    assert both, "the two sides were never read at one snapshot"
    few = {(form.__name__, node) for form in FORMS for node in range(2)} - {
        one for one, times in seen.reads.items() if times >= AT_LEAST_ROUNDS
    }
    assert not few, f"too few reads of {few}: {seen.reads}"
    assert min(seen.reads["tail", node] for node in range(2)) > EVENTS_PER_TAIL, "no tail was resumed"
