"""The demo, start to end: a cluster in a temporary folder, airports and flights, four indexes built while the
year goes by, questions, an independent check of every row, a table of what happened."""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from deploy.cluster import LocalCluster
from deploy.demo import airports, nearby
from deploy.demo import flights as source
from deploy.demo.feed import TimeLapse, send_all
from deploy.demo.nearby import SpatialAnswer
from deploy.demo.proof import Taken, prove, take
from keytide.cli.admin import Admin
from keytide.client import Client
from keytide.kafka.clients import AdminClient
from keytide.wire.entry_sums import EQUAL

TOPIC = "flights"
PARTITIONS = 4
YEAR_S = 150.0
"""The time-lapse of the year, at full size. On two cores the build is done in the middle of it (measured); in
100 s it was done when the year was over, for the faster one also slows the other down."""
ALL_FLIGHTS = 336_776
DURING, AT_THE_END = "during the year", "at its end"

STATEMENTS = {
    "arrivals": """CREATE INDEX arrivals ON flights (destination, arrival DESC) INCLUDE (flight, origin,
    arrival_delay)
        WITH (slices=4, defer_build=true) WHERE status = 'arrived'""",
    "long_delays": """CREATE INDEX long_delays ON flights (departure_delay DESC, carrier) INCLUDE (flight,
    destination, scheduled)
        WITH (slices=2, defer_build=true) WHERE departure_delay >= 120""",
    "by_airport": """CREATE INDEX by_airport ON flights (UNNEST(airports), status) WITH (slices=4,
    defer_build=true)""",
    "by_place": """CREATE INDEX by_place ON flights USING spatial (place) INCLUDE (flight, destination,
    arrival)
        WITH (slices=4, defer_build=true) WHERE status = 'arrived'""",
}


_Facts = list[tuple[str, str]]
"""What the closing table says: what, and the figure."""


def run(keep: bool = False, flights: int = ALL_FLIGHTS) -> int:
    """Tell the story. Exit status 0 when every check holds.

    Args:
        keep: leave the cluster running at the end, until Ctrl-C.
        flights: how many of the year's flights.
    """
    console = Console()
    console.rule("[bold]Keytide: the flights that left New York in 2013")
    folder = Path(tempfile.mkdtemp(prefix="keytide-demo-"))
    interrupted = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        cluster = LocalCluster(
            folder, say=lambda line: console.print(f"  {line}", style="dim", highlight=False)
        )
        stack.enter_context(cluster)
        console.print(f"web page: [link]{cluster.coordinator_url}[/link]\n", highlight=False)
        good = _tell(console, cluster, flights, stack)
        if keep:
            console.print(
                f"\nit runs on: web page {cluster.coordinator_url}, scans {', '.join(cluster.node_urls)}"
            )
            console.print("Ctrl-C stops it", style="dim")
            try:
                interrupted.wait()
            except KeyboardInterrupt:
                console.print()
    return 0 if good else 1


def _tell(console: Console, cluster: LocalCluster, count: int, stack: ExitStack) -> bool:
    facts: _Facts = []
    began = time.monotonic()
    admin = Admin(cluster.coordinator_url)
    client = stack.enter_context(Client(cluster.node_urls[0]))
    rows = source.load(count)

    console.print(
        "[bold]1. The year as scheduled, and the airports[/bold]: documents, written with kafka-python"
    )
    _make_topics(cluster.bootstrap)
    _show(console, nearby.AIRPORTS_STATEMENT)
    made = admin.call("POST", "/v1/statements", {"statement": nearby.AIRPORTS_STATEMENT})
    with _bar(console) as bar:
        task = bar.add_task("documents", total=len(rows))
        took = time.monotonic()
        sent = send_all(
            cluster.bootstrap, TOPIC, source.scheduled(rows), lambda n: bar.update(task, completed=n)
        )
        took = time.monotonic() - took
    facts.append(("flights written as scheduled", f"{sent:,} in {took:.1f} s"))
    # (The index is there before its first document: with nothing to read it is built without Spark.)
    admin.wait_for_build(made["build"], quiet=True)
    send_all(cluster.bootstrap, airports.KEYSPACE, airports.documents(), lambda _: None)

    console.print(
        "\n[bold]2. The year goes by[/bold]: flights depart, arrive or are cancelled, in time-lapse"
    )
    changes = source.updates(rows)
    lapse = TimeLapse(cluster.bootstrap, TOPIC, changes, max(20.0, YEAR_S * len(rows) / ALL_FLIGHTS))
    lapse.open()
    stack.callback(lapse.close)

    console.print(
        "\n[bold]3. Four indexes[/bold], built together by one Spark read of the topic while updates flow"
    )
    for statement in STATEMENTS.values():
        _show(console, statement)
        admin.call("POST", "/v1/statements", {"statement": statement})
    took = time.monotonic()
    build = _build(console, admin, lapse, len(changes))
    took = time.monotonic() - took
    at_ready = lapse.sent
    facts += [
        ("build of four indexes", f"{build['documents_done']:,} documents read, READY after {took:.1f} s"),
        ("verified before READY", _verified(console, admin, build)),
        ("updates written meanwhile", f"{at_ready:,}"),
    ]

    console.print("\n[bold]4. Questions while updates flow[/bold]")
    _ask(console, client, lapse)
    told: list[Taken | SpatialAnswer] = [_ask_places(console, client, nearby.ARRIVALS_NEAR, DURING)]
    told += [take(client, name, DURING) for name in STATEMENTS]

    console.print("\n[bold]5. The rest of the year[/bold]")
    with _bar(console) as bar:
        task = bar.add_task(source.day_of(lapse.now), total=len(changes), completed=lapse.sent)
        while lapse.running:
            bar.update(task, completed=lapse.sent, description=source.day_of(lapse.now))
            time.sleep(0.1)
        bar.update(task, completed=lapse.sent, description=source.day_of(lapse.now))
    lapse.check()
    facts.append(("departures, arrivals, cancellations", f"{lapse.sent:,}"))
    at_least = _ends(cluster.bootstrap, TOPIC)
    caught = time.monotonic()
    for name in STATEMENTS:
        client.page(name, limit=1, at_least=at_least, timeout_ms=60_000)
    waited_ms = (time.monotonic() - caught) * 1000
    facts.append(("after the last update, until scans of all four include it", f"{waited_ms:,.0f} ms"))
    told += [take(client, name, AT_THE_END, at_least=at_least) for name in STATEMENTS]
    _ask(console, client, lapse)
    told.append(_ask_places(console, client, nearby.ARRIVALS_NEAR, AT_THE_END, at_least=at_least))
    at_least = _ends(cluster.bootstrap, airports.KEYSPACE)
    nearest = _ask_places(console, client, nearby.NEAREST_AIRPORTS, AT_THE_END, at_least=at_least)

    console.print(
        "\n[bold]6. Proof[/bold]: topics read again with kafka-python and plain Python, every row compared"
    )
    good = _prove(console, cluster.bootstrap, TOPIC, told, facts)
    good = _prove(console, cluster.bootstrap, airports.KEYSPACE, [nearest], facts) and good
    skipped = sum(int(index.get("skipped") or 0) for index in admin.call("GET", "/v1/indexes"))
    facts += [
        ("documents in the skip ledgers", str(skipped)),
        ("whole demo, after the set-up", f"{time.monotonic() - began:.0f} s"),
    ]
    console.print()
    _closing_table(console, facts, admin)
    console.print(
        "[bold green]every index equals its source[/bold green]"
        if good
        else "[bold red]DIFFERENCES FOUND[/bold red]"
    )
    return good


def _make_topics(bootstrap: str) -> None:
    topics = [NewTopic(TOPIC, PARTITIONS, 1), NewTopic(airports.KEYSPACE, 1, 1)]
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        for made in admin.create_topics(topics).values():
            made.result(timeout=30)


def _show(console: Console, statement: str) -> None:
    console.print(f"  {' '.join(statement.split())};", style="cyan", highlight=False)


def _ends(bootstrap: str, topic: str) -> dict[str, int]:
    """Next offsets of a topic, by an ordinary consumer."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    partitions = consumer.partitions_for_topic(topic) or ()
    ends = consumer.end_offsets([TopicPartition(topic, partition) for partition in partitions])
    consumer.close()
    return {str(place.partition): offset for place, offset in ends.items()}


def _bar(console: Console) -> Progress:
    columns = (TextColumn("  {task.description:>14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


def _build(console: Console, admin: Admin, lapse: TimeLapse, updates: int) -> dict[str, Any]:
    """Build all indexes in one go, showing the build and the year side by side."""
    build: dict[str, Any] = admin.call("POST", "/v1/builds", {"indexes": list(STATEMENTS)})
    with _bar(console) as bar:
        building = bar.add_task("build", total=build.get("documents_total") or None)
        year = bar.add_task("updates", total=updates)
        while build["state"] not in ("READY", "FAILED", "CANCELLED"):
            build = admin.call("GET", f"/v1/builds/{build['id']}")
            total = build.get("documents_total") or None
            bar.update(
                building,
                completed=build["documents_done"],
                total=total,
                description=build["phase"] or build["state"].lower(),
            )
            bar.update(year, completed=lapse.sent, description=source.day_of(lapse.now))
            time.sleep(0.1)
    if build["state"] != "READY":
        raise SystemExit(f"the build is {build['state']}: {build['error']}")
    return build


def _verified(console: Console, admin: Admin, build: dict[str, Any]) -> str:
    """What the verification found that the build waited for, in words."""
    if not build["verification"]:
        return "yes, by sums" if build["compared"] == EQUAL else "no (setting build.verify)"
    job = admin.call("GET", f"/v1/jobs/{build['verification']}")
    if not job["clean"]:
        raise SystemExit(f"verification {job['id']} found {job['counts']}: {job['report']}")
    text = f"{job['documents_done']:,} records compared in {job['seconds']:.1f} s, nothing wrong"
    console.print(f"  Before the indexes answered they were compared with the topic: {text}")
    return text


def _ask(console: Console, client: Client, lapse: TimeLapse) -> None:
    """Questions that a reader understands, each one scan."""
    console.print(f"  it is {source.day_of(lapse.now)}")
    arrivals = list(
        client.scan("arrivals", low=["ORD", "2013-01-05T00:00"], high=["ORD", "2013-01-05T23:59"], limit=10)
    )
    _table(
        console,
        "the ten latest arrivals into O'Hare on 5 January",
        ("landed", "flight", "from", "minutes late"),
        (
            (str(row.key[1])[11:], row.include["flight"], row.include["origin"], _late(row.include))
            for row in arrivals
        ),
    )
    _table(
        console,
        "the five longest departure delays so far",
        ("minutes", "flight", "to", "scheduled"),
        (
            (str(row.key[0]), *(row.include[name] for name in ("flight", "destination", "scheduled")))
            for row in client.scan("long_delays", limit=5)
        ),
    )
    for status in ("arrived", "cancelled", "scheduled"):
        counted = client.count("by_airport", equals=["JFK", status])
        console.print(
            f"  flights at JFK with status {status}: {counted.count:,} (snapshot {counted.snapshot})"
        )


def _ask_places(
    console: Console, client: Client, question: nearby.SpatialQuestion, moment: str, **demands: Any
) -> SpatialAnswer:
    """One question of places, in SQL."""
    _show(console, question.sql)
    answer = nearby.ask(client, question, moment, **demands)
    shown = ([f"{one:,.0f}" if isinstance(one, float) else str(one) for one in row] for row in answer.rows)
    _table(console, f"{question.title}, {moment}", question.columns, map(tuple, shown))
    return answer


def _late(included: dict[str, Any]) -> str:
    late = included.get("arrival_delay")
    return "-" if late is None else str(late)


def _table(console: Console, title: str, columns: Iterable[str], rows: Iterable[tuple[str, ...]]) -> None:
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _prove(
    console: Console, bootstrap: str, topic: str, told: list[Taken | SpatialAnswer], facts: _Facts
) -> bool:
    """Compare every scan and every answer with the topic at its own timestamp."""
    with _bar(console) as bar:
        task = bar.add_task(topic, total=max(sum(one.offsets.values()) for one in told))
        found = prove(bootstrap, topic, told, lambda n: bar.update(task, completed=n))
    for one in found:
        console.print(
            f"  {one.what:12} {one.moment:16} snapshot {one.snapshot}: {one.rows:,} rows, {one.verdict}"
        )
        for line in one.wrong:
            console.print(f"    {line}", style="red", highlight=False)
        seconds = f" read in {one.seconds:.1f} s" if one.seconds is not None else ""
        facts.append((f"{one.what}, {one.moment}", f"{one.rows:,} rows{seconds}, {one.verdict}"))
    return not any(one.wrong for one in found)


def _closing_table(console: Console, facts: _Facts, admin: Admin) -> None:
    of_indexes = [
        (
            f"index {index['name']}",
            f"{index['state']}, {index['entries']:,} entries, {index['slices']} slices",
        )
        for index in admin.call("GET", "/v1/indexes")
    ]
    _table(console, "What happened", ("what", "figure"), [*facts, *of_indexes])
