"""What benchmarks say of their figures, and what they take for used."""

from __future__ import annotations

import asyncio
import itertools
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks import asking, harness, watching
from benchmarks.cost import taken
from benchmarks.harness import Result
from benchmarks.scan_load import open_loop
from keytide.errors import InvariantViolationError


def test_a_ratio_that_is_much_worse_than_the_kept_one_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    first = Result("scan-load", figures={"ratio_c1": 0.2, "ratio_c16": 0.1, "c1_per_s": 900})
    assert first.behind_kept() == [], "nothing is kept yet"
    first.save()
    slower = Result(
        "scan-load", figures={"ratio_c1": 0.165, "ratio_c16": 0.09, "c1_per_s": 100, "ratio_c64": 1}
    )
    (told,) = slower.behind_kept()
    assert "ratio_c1 is 0.165, 18% worse" in told


def test_a_ratio_that_is_a_little_worse_each_time_is_said_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what takes so many times as long as a peer (`_times_`), less is better."""
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    told = []
    for ours, times in ((0.2, 1.0), (0.18, 1.1), (0.16, 1.19)):
        one = Result("spatial", figures={"ratio_c1": ours, "box_times_postgis": times})
        told.append([line.split()[1] for line in one.behind_kept()])
        one.save()
    assert told == [[], [], ["ratio_c1", "box_times_postgis"]]
    assert Result("spatial", figures={"ratio_c1": 0.19, "box_times_postgis": 1.05}).behind_kept() == []


def test_a_result_says_which_commit_it_is_of_and_whether_code_differed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    monkeypatch.setattr(harness, "RESULTS", results)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert harness.commit() == "", "no repository"
    code, kept = tmp_path / "code.py", results / "live.json"
    for file in (code, kept):
        file.write_text("1")
    who = ("-c", "user.name=Ann", "-c", "user.email=ann@mail.example")
    for words in (("init", "-q"), ("add", "-A"), (*who, "commit", "-q", "-m", "x")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)
    clean = harness.commit()
    assert re.fullmatch("[0-9a-f]{8}", clean)
    kept.write_text("2")
    assert harness.commit() == clean, "that figures are new is no change of what is measured"
    code.write_text("2")
    assert harness.commit() == f"{clean}+"


def test_what_disks_hold_is_counted_by_topic_and_node(tmp_path: Path) -> None:
    for place, size in (
        ("kafka/data/t.mutations.i-1-0/0.log", 8_192),
        ("kafka/data/t.mutations.i-1-1/0.log", 4_096),
        ("kafka/data/meta.properties", 4_096),
        ("node-1/slices/i-1-0/base", 12_288),
    ):
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    assert taken(tmp_path) == {"topic t.mutations.i-1": 12_288, "kafka": 4_096, "node-1": 12_288}
    assert taken(tmp_path)["of nobody"] == 0


def test_what_is_asked_at_a_rate_counts_from_when_it_was_due() -> None:
    """A server that stands still for half a second makes all late that are due meanwhile."""

    async def test() -> dict[str, float]:
        answered = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal answered
            while not reader.at_eof():
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                except asyncio.IncompleteReadError:
                    break
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                answered += 1
                if answered == 20:
                    await asyncio.sleep(0.5)
                said = {1: b"503 Service Unavailable", 2: b"422 Unprocessable"}.get(answered, b"200 OK")
                writer.write(b"HTTP/1.1 %b\r\nContent-Length: 2\r\n\r\n[]" % said)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        found = await open_loop(f"http://127.0.0.1:{port}", per_second=40, connections=1, seconds=1)
        server.close()
        await asyncio.sleep(0)
        return found

    found = asyncio.run(test())
    assert found["p99_ms"] > 450
    assert found["p95_ms"] > 300, "those behind it were late as well"
    assert (found["refused"], found["failed"]) == (1, 1)


def test_what_was_started_is_waited_for_until_it_is_idle_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Busy in two looks, idle in the third; and then busy for ever."""
    looks = [{1: 5.0}, {1: 6.0}, {1: 6.2, 2: 0.8}, {1: 6.4, 2: 0.9}]
    monkeypatch.setattr(watching, "_used_below", lambda: looks.pop(0))
    clock = SimpleNamespace(monotonic=itertools.count().__next__, sleep=lambda _: None)
    monkeypatch.setattr(watching, "time", clock)
    watching.calm()
    assert looks == []
    busy = itertools.count()
    monkeypatch.setattr(watching, "_used_below", lambda: {1: float(next(busy))})
    watching.calm()
    assert next(busy) >= watching.CALM_LIMIT_S


@pytest.mark.parametrize("entries", [[400, 100, None], [400, 100, 0], [400, 150, 51], []])
def test_what_nodes_have_is_not_said_of_entries_that_are_not_all(entries: list[int | None]) -> None:
    placement = [["a"], ["b"], ["a"]][: len(entries)]
    assert not asking.all_heard(entries, 600)
    with pytest.raises(InvariantViolationError, match="BenchmarkEntries"):
        asking.shared_out(placement, entries, 600)


def test_what_nodes_have_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats tell of slices one after the other."""
    heard = [[400, None, 0], [400, 150, 0], [400, 150, 50]]
    monkeypatch.setattr("benchmarks.asking.time.sleep", lambda _: None)
    placement = [["a", "b"], ["b", "c"], ["a", "c"]]
    admin = SimpleNamespace(
        call=lambda *_: {"placement": placement, "entries_by_slice": heard.pop(0)},
    )
    found = asking.entries_by_node(cast("harness.Bench", SimpleNamespace(admin=admin)), 600)
    assert (found, heard) == ({"a": 450, "b": 550, "c": 200}, [])
    assert sum(found.values()) == 2 * 600, "of both copies"
