"""Minimum, median and maximum of several runs, and Keytide's ratios to its peers in each of them. Pure.

A ratio is larger where Keytide is faster, of rates and of times alike, and taken within one run: what else
the machine had to do then is the same for both.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Run = Mapping[str, Mapping[str, float]]
"""Who took part in a run -> figure -> its value."""

RATE: Final = "documents_per_s"
RANGE: Final = "range_p50_ms"
KEYTIDE: Final = "keytide"
KEYTIDE_BUILD: Final = "keytide_build"
KEYTIDE_ONE_NODE: Final = "keytide_one_node"
POSTGRESQL_COPY: Final = "postgresql_copy"
NAMES: Final[Mapping[str, str]] = {
    KEYTIDE: "Keytide, 2 nodes",
    KEYTIDE_ONE_NODE: "Keytide, 1 node",
    KEYTIDE_BUILD: "Keytide, build",
    "postgresql_upsert": "PostgreSQL, COPY and upsert, 2 clients",
    POSTGRESQL_COPY: "PostgreSQL, COPY, then index",
    "kafka_streams": "Kafka Streams, one store",
    "kafka_streams_each": "Kafka Streams, a store per partition",
    "quix_streams": "Quix Streams, 2 processes",
}
"""What people call them, in the order in which they are shown."""
HEAD: Final = (
    "",
    "documents/s",
    "Keytide to it",
    "100-row range, p50 ms",
    "p99 ms",
    "Keytide to it",
    "processor, us/document",
    "memory, MB",
)


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one figure in several runs."""

    least: float
    median: float
    most: float

    @staticmethod
    def of(values: Iterable[float]) -> Spread:
        """Of one run at least."""
        found = sorted(values)
        return Spread(found[0], statistics.median(found), found[-1])


def spreads(runs: Sequence[Run]) -> dict[tuple[str, str], Spread]:
    """(who, figure) -> its spread over the runs that have it."""
    values: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        for who, figures in run.items():
            for figure, value in figures.items():
                values.setdefault((who, figure), []).append(value)
    return {key: Spread.of(found) for key, found in values.items()}


def compared_with(peer: str, figure: str) -> str | None:
    """Which of Keytide's figures a peer's is compared with; None for what is not compared.

    What is loaded at once is compared with a build, what is kept up to date with live indexing. All peers
    answer ranges from one process, so they are compared with one node.
    """
    if peer.startswith(KEYTIDE):
        return None
    if figure == RATE:
        return KEYTIDE_BUILD if peer == POSTGRESQL_COPY else KEYTIDE
    return KEYTIDE_ONE_NODE if figure == RANGE else None


def ratios(runs: Sequence[Run]) -> dict[str, Spread]:
    """`ratio_<peer>` (of rates) and `ratio_<peer>_range` (of median times) -> spread of Keytide's ratio."""
    values: dict[str, list[float]] = {}
    for run in runs:
        for name, ratio in _ratios(run):
            values.setdefault(name, []).append(ratio)
    return {name: Spread.of(found) for name, found in values.items()}


def _ratios(run: Run) -> Iterator[tuple[str, float]]:
    for peer, figures in run.items():
        for figure, suffix in ((RATE, ""), (RANGE, "_range")):
            own = run.get(compared_with(peer, figure) or "", {}).get(figure)
            theirs = figures.get(figure)
            if own and theirs:
                yield f"ratio_{peer}{suffix}", own / theirs if figure == RATE else theirs / own


def figures_of(runs: Sequence[Run]) -> dict[str, float]:
    """The figures of a result: medians by `<who>_<figure>`, ratios with `min_` and `max_`."""
    found = {f"{who}_{figure}": _short(one.median) for (who, figure), one in spreads(runs).items()}
    for name, one in ratios(runs).items():
        found |= {name: _short(one.median)}
        found |= {f"min_{name}": _short(one.least), f"max_{name}": _short(one.most)}
    return found


def _short(value: float) -> float:
    return round(value) if value >= 1_000 else round(value, 3)


def table(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """Rows for people, the head first: rate and its ratio, range and its ratio, as `least / median / most`;
    then medians of what a document took of the processor, Kafka's part with it, and of the most memory."""
    known, compared = spreads(runs), ratios(runs)
    rows: list[tuple[str, ...]] = [HEAD]
    for who, words in NAMES.items():
        rate, p50, p99 = (known.get((who, one)) for one in (RATE, RANGE, "range_p99_ms"))
        if rate or p50:
            name = f"ratio_{who}"
            cells = (rate, compared.get(name), p50, p99, compared.get(f"{name}_range"))
            used = (known.get((who, one)) for one in ("cpu_us_per_document", "peak_memory_mb"))
            rows.append((words, *map(_cell, cells), *(f"{one.median:,.0f}" if one else "" for one in used)))
    return rows


def _cell(spread: Spread | None) -> str:
    if spread is None:
        return ""
    values = (spread.least, spread.median, spread.most)
    return " / ".join(f"{one:,.0f}" if one >= 1_000 else f"{one:.2f}" for one in values)
