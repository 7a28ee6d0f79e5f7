"""How kept figures moved: of each benchmark that is drawn, what was kept of it, oldest first.

Theory of operation: git has all results that were ever kept, but not where a page is only looked at, and not
those of a history that was written anew. So they are kept in `history.json` too, to which `python -m
benchmarks.report` adds what git and the results have and it has not. A version is known by its date and its
figures: that other things of a file changed makes no new one.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import RESULTS

FILE: Final = Path(__file__).with_name("history.json")
FIGURES: Final[Mapping[str, tuple[str, ...]]] = {
    "live": ("documents_per_s",),
    "churn": ("documents_per_s",),
    "backfill": ("documents_per_s",),
    "scan": ("p50_ms", "p99_ms"),
    "gather": ("p50_ms", "p99_ms"),
    "freshness": ("p50_ms", "p99_ms", "loaded_p50_ms", "loaded_p99_ms"),
}
"""Benchmark -> its figures that are drawn."""
MEASURED_ON: Final = ("cores", "memory_gib", "load_before", "date", "commit")

Version = dict[str, Any]
History = dict[str, list[Version]]


def version_of(name: str, result: Mapping[str, Any]) -> Version:
    """What is kept of a result: its figures that are drawn, and what it was measured on."""
    return {key: result[key] for key in (*FIGURES[name], *MEASURED_ON) if key in result}


def merged(kept: Sequence[Version], found: Iterable[Version]) -> list[Version]:
    """What is kept, with what is not yet of what was found, by date; of one date in the order given."""
    all_of_them = list(kept)
    known = {_identity(version) for version in kept}
    for version in found:
        if _identity(version) not in known:
            known.add(_identity(version))
            all_of_them.append(version)
    return sorted(all_of_them, key=lambda version: str(version["date"]))


def _identity(version: Version) -> str:
    return json.dumps({key: value for key, value in version.items() if key != "commit"}, sort_keys=True)


def read() -> History:
    """What is kept."""
    kept: History = json.loads(FILE.read_text()) if FILE.exists() else {}
    return kept


def update(results: Mapping[str, Mapping[str, Any]]) -> History:
    """Add to what is kept what git and the results have; returns all."""
    kept = read()
    for name in FIGURES:
        now = [version_of(name, results[name])] if name in results else []
        kept[name] = merged(kept.get(name, []), [*_in_git(name), *now])
    FILE.write_text(json.dumps(kept, indent=1) + "\n")
    return kept


def kept_by(name: str) -> str:
    """The last commit of a result's file, empty of one that none has."""
    return _git("log", "-1", "--format=%H", "--", f"{RESULTS.name}/{name}.json").strip()[:8]


def _in_git(name: str) -> Iterator[Version]:
    """Versions of a result that were committed, oldest first. One that does not say what was measured has
    the commit that kept it."""
    path = f"{RESULTS.name}/{name}.json"
    commits = _git("log", "--reverse", "--format=%H", "--", path).split()
    for commit in commits:
        if text := _git("show", f"{commit}:./{path}"):
            yield version_of(name, {"commit": commit[:8], **json.loads(text)})


def _git(*words: str) -> str:
    """What git says; nothing where there is none, or no such file."""
    try:
        command = ["git", *words]
        done = subprocess.run(command, cwd=RESULTS.parent, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""
