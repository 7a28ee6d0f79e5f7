"""The benchmark `peers`: Keytide and whoever else can be had, by turns, on the same documents.

Theory of operation: in each run everybody has one turn, in another order each time, and a Kafka of its own in
it (`turn`). Ratios are taken within a run. Who cannot be had is told of before the first run, and left out;
who fails in a run is left out of that run. Only Keytide must not fail.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import psycopg
from confluent_kafka import KafkaException
from rich.console import Console
from rich.table import Table

from benchmarks.documents import PARTITIONS
from benchmarks.harness import Result, machine_state, say
from benchmarks.peers import kafka_streams, own, postgresql, quix_streams
from benchmarks.peers.spread import figures_of, table
from benchmarks.throughput import MILLION
from keytide.errors import KeytideError

RUNS: Final = 3


@dataclass(frozen=True, slots=True)
class Contender:
    """Somebody who takes part.

    Attributes:
        words: what people call it.
        why_not: why it cannot take part; None when it can.
        run: its turn: documents -> name in the run -> figures.
    """

    words: str
    why_not: Callable[[], str | None]
    run: Callable[[int], Mapping[str, Mapping[str, float]]]


KEYTIDE: Final = Contender("Keytide", own.why_not, own.run)
PEERS: Final = (
    Contender("PostgreSQL", postgresql.why_not, postgresql.run),
    Contender("Kafka Streams", kafka_streams.why_not, kafka_streams.run),
    Contender("Quix Streams", quix_streams.why_not, quix_streams.run),
)


def peers(documents: int = MILLION, runs: int = RUNS) -> Result:
    """Documents in Kafka until the last one can be found, and pages of 100 rows: Keytide and its peers."""
    result = Result(f"peers{size_suffix(documents)}", machine=machine_state())
    result.sizes = {"documents": documents, "partitions": PARTITIONS, "runs": []}
    there = [KEYTIDE]
    for peer in PEERS:
        if reason := peer.why_not():
            result.notes.append(reason)
            say(reason)
        else:
            there.append(peer)
    for number in range(runs):
        found: dict[str, Mapping[str, float]] = {}
        for contender in (there * 2)[number % len(there) :][: len(there)]:
            say(f"run {number + 1} of {runs}: {contender.words}")
            found |= _turn(contender, documents, result)
        result.sizes["runs"].append(found)
        _show(result)
    result.figures = figures_of(result.sizes["runs"])
    return result


def size_suffix(documents: int) -> str:
    """What tells results of other sizes apart; none of the usual one."""
    if documents == MILLION:
        return ""
    return f"-{documents // MILLION}m" if documents % MILLION == 0 else f"-{documents // 1_000}k"


def _turn(contender: Contender, documents: int, result: Result) -> Mapping[str, Mapping[str, float]]:
    """What came of a turn; nothing of a peer that failed."""
    try:
        found = contender.run(documents)
    except (KeytideError, OSError, subprocess.SubprocessError, psycopg.Error, KafkaException) as error:
        if contender is KEYTIDE:
            raise
        why = str(error) or type(error).__name__
        reason = f"{contender.words} failed in run {len(result.sizes['runs']) + 1}: {why}"
        result.notes.append(reason.splitlines()[0])
        say(reason)
        return {}
    for name, figures in found.items():
        say(f"  {name}: " + ", ".join(f"{figure} {value:,}" for figure, value in figures.items()))
    return found


def _show(result: Result) -> None:
    """The table of the runs so far, for who waits."""
    head, *rows = table(result.sizes["runs"])
    shown = Table(
        title=f"{result.sizes['documents']:,} documents, least / median / most of {len(result.sizes['runs'])}"
    )
    for column in head:
        shown.add_column(column)
    for row in rows:
        shown.add_row(*row)
    Console(stderr=True, width=190).print(shown)
