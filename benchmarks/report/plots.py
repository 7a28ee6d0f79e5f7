"""What is drawn, and SVG of it by pygal.

Theory of operation: a plot is data first (`Plot`). A file has the digest of the data that it was drawn from,
by which it is known whether it is current: how it is drawn may change with pygal's release.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pygal
from pygal.style import Style

from benchmarks.peers.spread import KEYTIDE, NAMES, RANGE, RATE, spreads
from benchmarks.report.history import FIGURES, History

FOLDER: Final = Path(__file__).parents[2] / "docs" / "images" / "performance"
PEERS: Final = "peers"
"""The result whose runs are drawn: of the usual number of documents."""
_NOT_DRAWN: Final = re.compile(r"<!--.*?-->|<script\b.*?</script>", re.DOTALL)
"""When it was made and by what, and what would move in a page."""
_OURS, _THEIRS = "#1f6f8b", "#9aa5ab"
_STYLE: Final = Style(
    background="#ffffff",
    plot_background="#ffffff",
    font_family="sans-serif",
    guide_stroke_color="#d5dadd",
    major_guide_stroke_color="#d5dadd",
    guide_stroke_dasharray="1,0",
    major_guide_stroke_dasharray="1,0",
    opacity=".85",
    title_font_size=15,
    label_font_size=11,
    major_label_font_size=11,
    legend_font_size=11,
    value_font_size=11,
    colors=(_OURS, "#c4622d", "#5a8f3c", "#7d5ba6"),
)


@dataclass(frozen=True, slots=True)
class Plot:
    """What is drawn.

    Attributes:
        name: of the file.
        bars: lying bars, ours in another colour; else lines over the labels.
        labels: of the bars, or along the lines.
        series: name -> a value per label, None for none.
    """

    name: str
    title: str
    bars: bool
    labels: tuple[str, ...]
    series: Mapping[str, tuple[float | None, ...]]

    @property
    def digest(self) -> str:
        """Of the data, 64 hex digits."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    @property
    def path(self) -> Path:
        """Where its file lies."""
        return FOLDER / f"{self.name}.svg"


def plots(results: Mapping[str, Mapping[str, Any]], history: History) -> Iterator[Plot]:
    """All that the results give."""
    yield from peer_plots(results)
    yield from growth_plots(results)
    for name in FIGURES:
        if len(versions := history.get(name, [])) > 1:
            labels = tuple(f"{one['date'][5:]} {one.get('commit', '')}" for one in versions)
            lines = {words(key): tuple(one.get(key) for one in versions) for key in FIGURES[name]}
            yield Plot(f"history-{name}", f"{name}, as it was kept", False, labels, lines)


def peer_plots(results: Mapping[str, Mapping[str, Any]]) -> Iterator[Plot]:
    """Medians of Keytide and its peers, when they were measured together."""
    runs = results.get(PEERS, {}).get("sizes", {}).get("runs", [])
    known = spreads(runs)
    drawn = ((RATE, "peers-rate", "Documents/s, median"), (RANGE, "peers-range", "100-row range, ms, median"))
    for figure, name, title in drawn:
        there = [who for who in NAMES if (who, figure) in known]
        if there:
            labels = tuple(NAMES[who] for who in there)
            ours = tuple(known[who, figure].median if who.startswith(KEYTIDE) else None for who in there)
            theirs = tuple(None if who.startswith(KEYTIDE) else known[who, figure].median for who in there)
            yield Plot(name, title, True, labels, {"Keytide": ours, "peers": theirs})


def growth_plots(results: Mapping[str, Mapping[str, Any]]) -> Iterator[Plot]:
    """The rate of each further million of documents."""
    if grown := results.get("growth"):
        millions = sorted(int(found[1]) for key in grown if (found := re.fullmatch(r".*_at_(\d+)m", key)))
        values = tuple(float(grown[f"documents_per_s_at_{million}m"]) for million in millions)
        labels = tuple(f"{million} m" for million in millions)
        title = "Live indexing of each further million, documents/s"
        yield Plot("growth", title, False, labels, {"documents/s": values})


def words(figure: str) -> str:
    """A figure's name as people read it: `loaded_p50_ms` is loaded p50, ms."""
    name = re.sub(r"_per_s\b", "/s", figure)
    return re.sub(r"_(ms|s|mb)$", r", \1", name).replace("_", " ")


def svg(plot: Plot) -> str:
    """A plot as SVG, which is the same in each run."""
    kind = pygal.HorizontalBar if plot.bars else pygal.Line
    height = 90 + 44 * len(plot.labels) if plot.bars else 320
    chart = kind(
        js=(),
        no_prefix=True,
        explicit_size=True,
        width=860,
        height=height,
        style=_STYLE,
        title=plot.title,
        include_x_axis=True,
        show_legend=len(plot.series) > 1 and not plot.bars,
        legend_at_bottom=True,
        print_values=plot.bars,
        x_label_rotation=0 if plot.bars else 25,
        truncate_label=-1,
        y_labels_major_count=0 if plot.bars else 5,
        show_minor_y_labels=plot.bars,
        value_formatter=lambda value: f"{value:,.0f}" if value >= 1_000 else f"{value:,.4g}",
    )
    labels, flip = list(plot.labels), -1 if plot.bars else 1  # (bars are drawn from below)
    chart.x_labels = labels[::flip]
    if plot.bars:  # one series: of several each label would have a place for each
        both = [
            (value, _OURS if name == "Keytide" else _THEIRS)
            for name, row in plot.series.items()
            for value in row
        ]
        size = len(labels)
        merged = [next(one for one in both[at::size] if one[0] is not None) for at in range(size)]
        chart.add(plot.title, [{"value": value, "color": color} for value, color in merged[::flip]])
    else:
        for name, values in plot.series.items():
            chart.add(name, list(values))
    drawn = _NOT_DRAWN.sub("", chart.render(is_unicode=True))
    return f"{drawn.rstrip()}\n<!-- drawn from {plot.digest} -->\n"
