"""The README's tour, as a new user copies it: its blocks in their order, on a cluster of its own; then the
examples of the pages that go on from there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from deploy.process import free_ports
from tests.unit.test_pages import BLOCK
from tests.unit.test_style import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(900)]

LIMIT_S = 400
PAGES = ("clients", "scan-consistently")
"""Of docs/: those whose examples are about the tour's index."""
PRELUDE = """
from keytide import Client
client = Client("http://127.0.0.1:8093")
file = open("rows", "wb")
def write(batch): pass
"""
"""Names that examples go on with, of the ones before them and of the reader's own program."""
UP = "make up ARGS=--detach"
"""What the tour begins with. `make` would make `.venv`, in which this runs."""
ENDLESS = ("curl -sN", "client.tail(")
"""Streams that a person ends."""
ENDED = "timeout 3 {} || test $? = 124"
SHOWN = {
    "keytide scan by_city --equals Boston": ["u1", "u2"],
    'keytide sql "SELECT city, COUNT(*)': ["Austin", "Boston"],
    'keytide sql "EXPLAIN': ["by_city"],
    "curl -s ": ["Boston"],
    "curl -sN ": ["event: "],
    "python own_writes.py": ["u4"],
    "with Client(": ["u1", "u2"],
}
"""Beginning of a command or of a line of a program -> what it must show."""


class Step(NamedTuple):
    argv: list[str]
    text: str


class Tour:
    """A folder and ports in place of the ones that the page names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.node_port = map(str, free_ports(2))
        commands = Path(sys.executable).parent
        self.environment = os.environ | {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}
        self.environment.pop("KEYTIDE_DATA_DIR", None)

    def tour(self) -> Iterator[Step]:
        """Every line of a shell block; every program, which is written down where its first line names it."""
        text = (ROOT / "README.md").read_text()
        tour = text[text.index("## A tour of five minutes") : text.index("## How it compares")]
        for language, block in self._blocks(tour):
            if language == "sh":
                for line in block.splitlines():
                    yield Step(["bash", "-c", self._line(line)], line)
            elif name := re.match(r"# (\w+\.py)\n", block):
                (self.folder / name[1]).write_text(block)
            else:
                yield self._program(block)

    def page(self, name: str) -> Iterator[Step]:
        """Every block of a page: a shell block as one script, for it may set variables."""
        for language, block in self._blocks((ROOT / "docs" / f"{name}.md").read_text()):
            if language == "sh":
                script = "\n".join(map(self._line, block.splitlines()))
                yield Step(["bash", "-e", "-o", "pipefail", "-c", script], block)
            else:
                yield self._program(self._placed(PRELUDE) + block)

    def _blocks(self, text: str) -> list[tuple[str, str]]:
        """(language, text) of what can be run."""
        found: list[tuple[str, str]] = BLOCK.findall(self._placed(text))
        return [block for block in found if block[0] in ("sh", "python")]

    def _placed(self, text: str) -> str:
        ports = {"8091": self.port, "8093": self.node_port, "8094": str(int(self.node_port) + 1)}
        return re.sub("809[134]", lambda named: ports[named[0]], text)

    def _program(self, text: str) -> Step:
        argv = [sys.executable, "-c", text]
        if any(stream in text for stream in ENDLESS):
            argv = ["bash", "-c", ENDED.format('"$0" "$@"'), *argv]
        return Step(argv, text)

    def _line(self, line: str) -> str:
        if line.startswith(UP):
            return f"keytide up --detach --port {self.port} --node-port {self.node_port}"
        return ENDED.format(line.partition("   #")[0]) if line.startswith(ENDLESS) else line

    def run(self, step: Step) -> str:
        """What a step prints; fails when it does not end well."""
        done = subprocess.run(
            step.argv, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=LIMIT_S
        )
        assert done.returncode == 0, f"{step.text}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def tour(tmp_path: Path) -> Iterator[Tour]:
    made = Tour(tmp_path)
    yield made
    made.run(Step(["keytide", "down"], "keytide down"))


@pytest.mark.skipif(not shutil.which("jq"), reason="examples use jq: apt-get install jq")
def test_the_tour_of_the_readme_and_what_goes_on_from_it(tour: Tour) -> None:
    asked: set[str] = set()
    for step in tour.tour():
        shown = tour.run(step)
        for beginning, wanted in SHOWN.items():
            if step.text.startswith(beginning) or f"\n{beginning}" in step.text:
                asked.add(beginning)
                assert [text for text in wanted if text not in shown] == [], f"{step.text}\n{shown}"
    assert asked == set(SHOWN), "the tour is another one now: say here what it must show"
    for page in PAGES:
        steps = list(tour.page(page))
        assert len(steps) > 3
        for step in steps:
            tour.run(step)
