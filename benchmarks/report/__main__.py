"""Writes docs/performance.md, its plots, and the history that they draw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from benchmarks.__main__ import ALL
from benchmarks.harness import RESULTS, commit
from benchmarks.report import history
from benchmarks.report.page import page
from benchmarks.report.plots import FOLDER, plots, svg

PAGE: Final = Path(__file__).parents[2] / "docs" / "performance.md"


def results() -> dict[str, dict[str, Any]]:
    """All that are kept, by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}


def complete(kept: dict[str, dict[str, Any]]) -> None:
    """Say of what each result is that does not say it: the commit that kept it, or today's."""
    for name, result in kept.items():
        if not result.get("commit"):
            result["commit"] = history.kept_by(name) or commit()
            (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")


def main() -> None:
    """Write all; plots that are no more go."""
    kept = results()
    complete(kept)
    moved = history.update(kept)
    PAGE.write_text(page(kept, moved, ALL))
    FOLDER.mkdir(parents=True, exist_ok=True)
    drawn = list(plots(kept, moved))
    for plot in drawn:
        plot.path.write_text(svg(plot))
    for path in set(FOLDER.glob("*.svg")) - {plot.path for plot in drawn}:
        path.unlink()
    print("docs/performance.md")


if __name__ == "__main__":
    main()
