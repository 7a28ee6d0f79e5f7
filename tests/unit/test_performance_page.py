"""docs/performance.md and its plots are what `make performance` makes of the results that are kept."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.__main__ import ALL
from benchmarks.report import history
from benchmarks.report.__main__ import PAGE, results
from benchmarks.report.history import FIGURES, merged, version_of
from benchmarks.report.page import page
from benchmarks.report.plots import FOLDER, Plot, peer_plots, plots, svg, words
from tests.unit.test_peers import RUNS

STALE = "run `make performance`, look at what has changed, and commit it"


def result(**more: Any) -> dict[str, Any]:
    """One with what every result has."""
    machine = {"cores": 2, "memory_gib": 24, "load_before": 0.1, "date": "2026-11-28", "commit": "abc"}
    return {**machine, "sizes": {}, "shares": {}, "notes": [], **more}


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(results(), history.read(), ALL), STALE


def test_the_plots_are_current() -> None:
    drawn = {plot.path: plot.digest for plot in plots(results(), history.read())}
    assert len(drawn) > 5
    assert set(FOLDER.glob("*.svg")) == drawn.keys(), STALE
    assert [path.name for path, digest in drawn.items() if digest not in path.read_text()] == [], STALE


def test_the_history_has_what_is_kept_now() -> None:
    kept, now = history.read(), results()
    for name in FIGURES:
        assert len(kept[name]) > 1, "nothing moved"
        assert merged(kept[name], [version_of(name, now[name])]) == kept[name], STALE


@pytest.mark.parametrize("name", results())
def test_every_result_says_what_it_was_measured_on(name: str) -> None:
    assert {"cores", "memory_gib", "load_before", "date", "commit"} <= results()[name].keys()


def test_a_version_is_known_by_its_figures_and_its_day() -> None:
    first = {"documents_per_s": 1, "date": "2026-11-20", "commit": "a"}
    second = {"documents_per_s": 2, "date": "2026-11-22", "commit": "b"}
    between = {"documents_per_s": 3, "date": "2026-11-21", "commit": "c"}
    assert merged([first, second], []) == [first, second]
    assert merged([first, second], [{**second, "commit": "later"}]) == [first, second]
    assert merged([first, second], [first, between]) == [first, between, second]
    assert merged([first], [{**first, "documents_per_s": 4}])[1]["documents_per_s"] == 4


def test_what_is_to_be_known_of_figures_is_said_below_them() -> None:
    text = page({"live": result(seconds=4.8, notes=["other work ran meanwhile"])}, {}, ALL)
    assert text.endswith("seconds: 4.8.\n\nOther work ran meanwhile.\n")


def test_who_is_faster_is_said_either_way() -> None:
    text = page({"peers": result(sizes={"runs": RUNS, "documents": 1_000_000})}, {}, ALL)
    faster, slower = text.split("Slower than Keytide are ")
    assert (
        "PostgreSQL, COPY and upsert, 2 clients: ranges 4.0 times as fast" in faster.split("Faster than")[1]
    )
    assert "Quix Streams, 2 processes: documents 8.0 times as slow" in slower.split(".\n")[0]
    assert "load before 0.1, 2026-11-28, commit abc" in text
    assert "images/performance/peers-rate.svg" in text
    assert text.count("200,000") == 1, "told in the table alone"


def test_peers_are_drawn_by_their_medians_and_keytide_apart() -> None:
    rate, range_ = peer_plots({"peers": result(sizes={"runs": RUNS, "documents": 1_000_000})})
    ours = dict(zip(rate.labels, rate.series["Keytide"], strict=True))
    theirs = dict(zip(rate.labels, rate.series["peers"], strict=True))
    assert ours["Keytide, 2 nodes"] == 200_000
    assert ours["Quix Streams, 2 processes"] is None
    assert theirs["Quix Streams, 2 processes"] == 25_000
    assert "Quix Streams, 2 processes" not in range_.labels
    assert not list(peer_plots({}))


@pytest.mark.parametrize("bars", [True, False])
def test_a_plot_is_drawn_alike_each_time_and_has_nothing_that_moves(bars: bool) -> None:
    plot = Plot("x", "of x", bars, ("a", "b"), {"Keytide": (1.0, None), "peers": (None, 2_000.0)})
    drawn = svg(plot)
    assert drawn == svg(plot)
    assert "<script" not in drawn
    assert plot.digest in drawn
    assert ">2,000<" in drawn
    other = Plot("x", "of x", bars, ("a", "b"), {"Keytide": (1.5, None), "peers": (None, 2_000.0)})
    assert other.digest != plot.digest


def test_figures_are_told_in_words() -> None:
    named = ["documents_per_s", "loaded_p50_ms", "peak_memory_mb", "kept_share", "rebuild_s"]
    assert [words(one) for one in named] == [
        "documents/s",
        "loaded p50, ms",
        "peak memory, mb",
        "kept share",
        "rebuild, s",
    ]
