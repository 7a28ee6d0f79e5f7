"""The web page in a real browser: what the API says appears, in words that a person reads, at both widths."""

from __future__ import annotations

import html
import itertools
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from coordinator.core.instructions import Instruction
from coordinator.core.slice_loads import Hot, LoadLimits, SliceLoads
from coordinator.statements.auto_split import AutoSplitLimits, AutoSplits
from keytide.catalog.records import IndexRecord
from tests.browser.scene import FLIGHTS, NODES, busy_day, served

pytestmark = pytest.mark.browser
LIMIT_S = 240
RUN_S = 90
"""For a page with all tries, and for one: on a busy machine a browser takes long to start."""


@pytest.fixture(scope="module")
def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip("there is no Chromium: sudo apt-get install chromium")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    scene = busy_day()
    leader = scene.leader
    leader.loads = HotSlice(leader.stability.nodes, LoadLimits())
    leader.auto_splits = Waits(leader.builds, leader.loads, AutoSplitLimits())
    index = leader.dictionary.index_named("late_arrivals")
    leader.auto_splits.waiting = {index.id: "waits until it has one layout again"}
    with served(scene) as url:
        yield url


class HotSlice(SliceLoads):
    """One slice is hot."""

    def hot(self, index: IndexRecord) -> list[Hot]:
        return [Hot(5, "writes", 900.0, 100.0)] if index.name == "late_arrivals" else []


class Waits(AutoSplits):
    """An index gets no more slices by itself now."""

    def tick(self, now: int) -> list[Instruction]:
        return []


def run(chromium: str, profile: Path, url: str) -> str:
    """Load a page, let it ask the API and draw; the document then.

    Args:
        profile: a folder that no browser has used.

    Raises:
        SubprocessError: the browser hangs, or died.
    """
    command = [
        *(
            chromium,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ),
        *("--virtual-time-budget=4000", f"--user-data-dir={profile}", "--window-size=1280,1600"),
        *("--dump-dom", url),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=True).stdout


def text_of(document: str) -> str:
    """The words of a document without tags."""
    body = re.sub(r"<script.*?</script>", " ", document, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body))


def load(chromium: str, folder: Path, url: str, sign: str) -> str:
    """The document as drawn, when it has `sign` in it. It is tried again: on a busy machine virtual time may
    run out before there is an answer, and a browser may hang or die. (Each try has a profile of its own: a
    browser that was killed leaves its lock in the old one.)"""
    deadline = time.monotonic() + LIMIT_S
    for number in itertools.count():
        try:
            drawn = run(chromium, folder / f"profile-{number}", url)
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            told = f"{error}: {error.stderr!r}"
        else:
            if sign in drawn:
                break
            told = text_of(drawn)
        assert time.monotonic() < deadline, f"{sign} never came:\n{told}"
    return drawn


def test_a_browser_that_hangs_or_dies_is_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles: list[Path] = []
    ends = [subprocess.TimeoutExpired("chromium", RUN_S), subprocess.CalledProcessError(-6, "chromium")]

    def failing(_: str, profile: Path, url: str) -> str:
        profiles.append(profile)
        if ends:
            raise ends.pop()
        return "drawn" if len(profiles) == 4 else "not yet"

    monkeypatch.setattr(sys.modules[__name__], "run", failing)
    assert load("chromium", tmp_path, "url", "drawn") == "drawn"
    assert len(set(profiles)) == 4


@pytest.fixture(scope="module")
def document(chromium: str, address: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page as drawn."""
    return load(chromium, tmp_path_factory.mktemp("page"), address + "/", 'data-loaded="yes"')


def test_indexes_appear_with_state_and_numbers(document: str) -> None:
    table = document[document.index('id="indexes"') : document.index('id="stability"')]
    rows = [text_of(row) for row in re.findall(r"<tr>.*?</tr>", table, re.DOTALL)][1:]
    assert [row.split()[0] for row in rows] == [
        "by_carrier",
        "by_destination",
        "by_origin",
        "by_tail",
        "late_arrivals",
    ]
    states = [next(word for word in row.split() if word in ("READY", "BUILDING", "FAILED")) for row in rows]
    assert states == ["BUILDING", "READY", "BUILDING", "FAILED", "READY"]
    assert "336,776" in rows[1]
    assert "topic flights does not exist any more" in rows[3]


def test_a_slice_whose_data_is_lost_is_told(document: str) -> None:
    words = text_of(document)
    assert "slice 3 of late_arrivals: data lost" in words
    assert "1 slices have lost their data" in words
    assert "serves nothing until it is filled or rebuilt" in words


def test_a_slice_that_is_hot_is_told_with_how_to_see_what_helps(document: str) -> None:
    assert (
        "slice 5 is hot: 900 entries/s are written to it, 100 to others of its index; "
        "what helps: keytide index load late_arrivals auto_split: waits until it has one layout again"
    ) in text_of(document)


def test_a_new_layout_is_told_of_its_index(document: str) -> None:
    words = text_of(document)
    assert re.search(r"new layout by_destination-\d+ \(12 slices\) is DEFERRED, by build b\d+", words)


def test_builds_show_progress_what_they_wait_for_and_why_they_failed(document: str) -> None:
    part = document[document.index('id="builds"') : document.index('id="indexes"')]
    builds = re.findall(r"<article.*?</article>", part, re.DOTALL)
    by_name = {text_of(build).split()[0]: build for build in builds}
    under_way = by_name["by_carrier"]
    (percent,) = re.findall(r'aria-valuenow="([\d.]+)"', under_way)
    assert 35 < float(percent) < 99.9
    (read,) = re.findall(r"([\d,]+) of 336,776 documents", text_of(under_way))
    assert 120_000 <= int(read.replace(",", "")) < FLIGHTS, "it goes on while the browser is tried again"
    assert "reading" in text_of(under_way)
    assert "keytide build pause" in text_of(under_way)
    assert "keytide build" not in text_of(by_name["by_tail"])
    assert "waits for its turn on node" in text_of(by_name["by_origin"])
    assert "does not exist any more" in text_of(by_name["by_tail"])
    assert 'aria-valuenow="100"' in by_name["late_arrivals"]


def test_nodes_timestamps_and_events_appear(document: str) -> None:
    words = text_of(document)
    for node in NODES:
        assert node in words
    assert "Newest number" in words
    assert "index by_destination answers scans from snapshot" in words
    assert "term 4" in words


def test_nothing_is_loaded_from_elsewhere(document: str, address: str) -> None:
    links = re.findall(r'(?:src|href)="([^"]+)"', document)
    assert links
    foreign = [link for link in links if re.match(r"[a-z]+:|//", link) and not link.startswith(address)]
    assert foreign == []


def test_the_verdict_is_the_coordinators_with_what_to_do(document: str, address: str) -> None:
    (pill,) = re.findall(r'id="health"[^>]*>([^<]*)<', document)
    assert pill == "failing"
    part = text_of(document[document.index('id="reasons"') : document.index('id="builds"')])
    verdict = httpx.get(f"{address}/v1/health").json()
    assert verdict["status"] == "failing"
    for reason in verdict["reasons"]:
        if reason["kind"] == "index":
            assert reason["subject"] in part
            assert " ".join(reason["next_step"].split()) in html.unescape(part)


def test_all_times_are_by_the_coordinators_clock(chromium: str, tmp_path: Path) -> None:
    scene = busy_day()
    scene.ahead_ms = 7_200_000
    with served(scene) as url:
        words = text_of(load(chromium, tmp_path, url + "/", 'data-loaded="yes"'))
    (hours,) = re.findall(r"as of (\d\d):\d\d:\d\d, by the coordinator's clock", words)
    assert int(hours) in {time.localtime(time.time() + 7_200 - late).tm_hour for late in (0, LIMIT_S)}


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_its_window(chromium: str, address: str, tmp_path: Path, width: int) -> None:
    drawn = load(chromium, tmp_path, f"{address}/frame/{width}", "data-scroll=")
    (scroll,) = re.findall(r'data-scroll="(\d+)"', drawn)
    assert int(scroll) == width


def test_without_a_token_the_page_asks_for_one(chromium: str, tmp_path: Path) -> None:
    with served(busy_day(security={"tokens": {"secret": ["read"]}})) as url:
        drawn = load(chromium, tmp_path, url + "/", "token needed")
    assert "by_carrier" not in drawn
