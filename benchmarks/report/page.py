"""The Markdown of docs/performance.md."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from benchmarks.peers.spread import NAMES, ratios, table
from benchmarks.report.history import FIGURES, History
from benchmarks.report.plots import PEERS, Plot, growth_plots, peer_plots, words

Results = Mapping[str, Mapping[str, Any]]

_MACHINE: Final = ("cores", "memory_gib", "load_before", "date", "commit", "python")
_OTHER: Final = ("name", "sizes", "shares", "notes", "best")
_DRAWN: Final = re.compile(r"documents_per_s_at_\d+m")
"""One for each million: the plot has them."""

_HEAD: Final = """\
# Performance

Made by `make performance` from the results that are kept in `benchmarks/results`; every figure is of a run
of `make bench` that can be repeated. Kafka and everything else run on the one machine that is named beside
a figure, with its load (of the minute before) and the commit that was measured (`+`: with changes; results
before 28 November 2026 have the commit that kept them). Figures move by a fifth from run to run, and more
where the load was not near zero: what counts is the ratio to a peer in the same run. `make bench` says when
such a ratio is more than 15 percent below the best that was kept.
"""
_BESIDE: Final = """
## Beside its peers

`make bench ARGS=peers` gives everybody a turn in each of three runs, in another order each time. In a turn
there is a fresh Kafka with one topic of 8 partitions. It is filled with the same JSON documents of about
240 bytes while the peer, which has begun, stands still. The clock starts when it may go on, and stops when
the last document of each partition can be found: in a stable scan of Keytide, in a committed table of
PostgreSQL, in the store of Kafka Streams. A document of Quix Streams counts when its process has put its
key into the state, for nobody outside can ask. A range is 100 rows in key order from a random city on, one
after the other over one connection, once all processes are idle: asked of Keytide and Kafka Streams over
HTTP by a client in Python, of PostgreSQL in its own protocol by pgbench, which is C. (In a run of commit
e6526837 ranges were asked as soon as all was loaded.)

They do not do the same. Keytide's ranges are one consistent cut of all its slices, and it leaves the
documents in Kafka. PostgreSQL stores them too, on one node. A range over the stores of Kafka Streams is no
cut, and Quix Streams keeps the key of each document without an order to ask for. Ratios are above 1 where
Keytide is faster. What PostgreSQL loads at once, and indexes after that, is compared with a build; all
ranges are compared with those of one node of Keytide. The processor's time is that of all processes, Kafka's
among them; memory is the most that all but Kafka had at once, without page cache and shared memory.
"""
_NONE: Final = "\nNo such run is kept yet.\n"


def page(results: Results, history: History, described: Mapping[str, Callable[..., Any]]) -> str:
    """The whole page.

    Args:
        results: by name.
        described: the benchmarks by their names, for what their docstrings say.
    """
    parts = [_HEAD, _BESIDE, *_peers(results), *_growth(results), *_history(history)]
    return "".join([*parts, *_all(results, described)])


def _peers(results: Results) -> Iterator[str]:
    measured = [name for name in results if _has_runs(name, results[name])]
    if not measured:
        yield _NONE
    for name in sorted(measured, key=lambda one: (len(one), one)):
        result = results[name]
        runs = result["sizes"]["runs"]
        yield f"\n### {result['sizes']['documents']:,} documents, {len(runs)} runs\n\n"
        yield f"{_measured_on(result)} Least / median / most.\n\n"
        head, *rows = table(runs)
        yield f"{_row(head)}{_row('---' for _ in head)}{''.join(map(_row, rows))}"
        yield f"\n{_who_is_faster(runs)}\n"
        for note in result.get("notes", []):
            yield f"\n{note}.\n"
        if name == PEERS:
            yield from map(_image, peer_plots(results))


def _who_is_faster(runs: list[Any]) -> str:
    """In words, by the medians."""
    faster: list[str] = []
    slower: list[str] = []
    for name, ratio in sorted(ratios(runs).items()):
        range_ = name.endswith("_range")
        peer = NAMES[name.removeprefix("ratio_").removesuffix("_range")]
        times = ratio.median if ratio.median >= 1 else 1 / ratio.median
        said = f"{peer}: {'ranges' if range_ else 'documents'} {times:.1f} times as fast"
        (slower if ratio.median >= 1 else faster).append(said)
    told = [f"Faster than Keytide are {'; '.join(faster)}."] if faster else []
    them = [one.replace("times as fast", "times as slow") for one in slower]
    return " ".join([*told, *([f"Slower than Keytide are {'; '.join(them)}."] if them else [])])


def _growth(results: Results) -> Iterator[str]:
    for plot in growth_plots(results):
        yield f"\n## As an index grows\n\n{_measured_on(results['growth'])}\n{_image(plot)}"


def _history(history: History) -> Iterator[str]:
    yield "\n## How figures moved\n\nAll that were kept. The load says how far to trust a step.\n"
    for name, figures in FIGURES.items():
        versions = history.get(name, [])
        if not versions:
            continue
        yield f"\n### {name}, over time\n"
        if len(versions) > 1:
            yield _image(Plot(f"history-{name}", f"{name}, as it was kept", False, (), {}))
        yield "\n" + _row(("date", "commit", "cores", "load before", *map(words, figures)))
        yield _row("---" for _ in range(4 + len(figures)))
        for one in versions:
            measured = (one["date"], one.get("commit", ""), str(one["cores"]), str(one["load_before"]))
            yield _row((*measured, *(_number(one.get(figure)) for figure in figures)))


def _all(results: Results, described: Mapping[str, Callable[..., Any]]) -> Iterator[str]:
    yield "\n## All kept figures\n"
    for name, result in sorted(results.items()):
        if _has_runs(name, result):
            continue  # its table is above
        yield f"\n### {name}\n\n"
        if of := max((one for one in described if _is(name, one)), key=len, default=None):
            yield f"{_about(described[of])} "
        documents = result.get("sizes", {}).get("documents")
        yield f"{f'{documents:,} documents. ' if documents else ''}{_measured_on(result)}\n\n"
        figures = {
            key: value
            for key, value in result.items()
            if key not in (*_MACHINE, *_OTHER) and not _DRAWN.match(key)
        }
        yield "; ".join(f"{words(key)}: {_number(value)}" for key, value in figures.items()) + ".\n"
        yield from (f"\n{note[0].upper()}{note[1:]}.\n" for note in result.get("notes", []))


def _has_runs(name: str, result: Mapping[str, Any]) -> bool:
    """Whether a result is one of peers, as they are measured now."""
    return _is(name, PEERS) and bool(result["sizes"].get("runs"))


def _is(result: str, benchmark: str) -> bool:
    return result == benchmark or result.startswith(f"{benchmark}-")


def _about(benchmark: Callable[..., Any]) -> str:
    """The first paragraph of its docstring, in one line."""
    text = (inspect.getdoc(benchmark) or "").split("\n\n")[0]
    return re.sub(r"\s+", " ", text).rstrip(":.") + "."


def _measured_on(result: Mapping[str, Any]) -> str:
    commit = f", commit {result['commit']}" if result.get("commit") else ""
    return (
        f"*{result['cores']} cores, {result['memory_gib']} GiB, load before {result['load_before']}, "
        f"{result['date']}{commit}.*"
    )


def _image(plot: Plot) -> str:
    return f"\n![{plot.title}](images/performance/{plot.name}.svg)\n"


def _row(cells: Any) -> str:
    return "| " + " | ".join(cells) + " |\n"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,}"
