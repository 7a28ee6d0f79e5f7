"""What the benchmark of peers makes of its runs, and who takes part in it."""

from __future__ import annotations

import http.client
import subprocess
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import NoReturn

import pytest

from benchmarks.peers import comparing, kafka_streams, postgresql, quix_streams
from benchmarks.peers.comparing import Contender, peers, size_suffix
from benchmarks.peers.spread import NAMES, Spread, figures_of, ratios, spreads, table
from benchmarks.peers.turn import get
from deploy.jars import JarsError
from deploy.java import Java
from keytide.errors import RetryableError

RUNS: list[dict[str, dict[str, float]]] = [
    {
        "keytide": {"documents_per_s": rate, "range_p50_ms": 2.0},
        "keytide_build": {"documents_per_s": 90_000},
        "keytide_one_node": {"range_p50_ms": 0.8, "range_p99_ms": 3.0},
        "postgresql_upsert": {"documents_per_s": theirs, "range_p50_ms": 0.2, "peak_memory_mb": 150},
        "postgresql_copy": {"documents_per_s": 120_000},
        "quix_streams": {"documents_per_s": 25_000},
    }
    for rate, theirs in ((200_000, 100_000), (150_000, 150_000), (210_000, 70_000))
]


def test_a_spread_is_least_median_and_most() -> None:
    assert Spread.of([3, 1, 2]) == Spread(1, 2, 3)
    assert Spread.of([1, 4]) == Spread(1, 2.5, 4)
    assert Spread.of([7]) == Spread(7, 7, 7)


def test_ratios_are_taken_within_a_run_and_are_larger_where_keytide_is_faster() -> None:
    found = ratios(RUNS)
    assert found["ratio_postgresql_upsert"] == Spread(1.0, 2.0, 3.0)
    assert found["ratio_quix_streams"] == Spread(6.0, 8.0, 8.4)
    assert found["ratio_postgresql_copy"].median == 0.75, "what is loaded at once is compared with a build"
    assert found["ratio_postgresql_upsert_range"].median == pytest.approx(0.25), "slower: 0.8 ms against 0.2"
    assert not [name for name in found if "keytide" in name]


def test_who_was_not_there_in_a_run_counts_in_the_others() -> None:
    runs = [*RUNS[:2], {name: one for name, one in RUNS[2].items() if name != "postgresql_upsert"}]
    assert ratios(runs)["ratio_postgresql_upsert"] == Spread(1.0, 1.5, 2.0)
    assert spreads(runs)["postgresql_upsert", "documents_per_s"] == Spread(100_000, 125_000, 150_000)


def test_figures_have_medians_and_the_ratios_that_are_held_against_kept_ones() -> None:
    found = figures_of(RUNS)
    assert found["keytide_documents_per_s"] == 200_000
    assert found["ratio_postgresql_upsert"] == 2.0
    assert (found["min_ratio_postgresql_upsert"], found["max_ratio_postgresql_upsert"]) == (1.0, 3.0)


def test_the_table_has_all_that_took_part_in_one_order() -> None:
    head, *rows = table(RUNS)
    assert {len(row) for row in (head, *rows)} == {8}
    there = [words for who, words in NAMES.items() if who in RUNS[0]]
    assert [row[0] for row in rows] == there
    (upsert,) = [row for row in rows if row[0] == NAMES["postgresql_upsert"]]
    assert upsert[1:3] == ("70,000 / 100,000 / 150,000", "1.00 / 2.00 / 3.00")
    assert upsert[-3:] == ("0.25 / 0.25 / 0.25", "", "150")


def test_results_of_other_sizes_have_other_names() -> None:
    assert [size_suffix(n) for n in (1_000_000, 5_000_000, 300_000, 1_500_000)] == [
        "",
        "-5m",
        "-300k",
        "-1500k",
    ]


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who had turns: Keytide, one peer that works, one that fails in its second run; one is not there."""
    had: list[str] = []

    def contender(name: str, rate: int, reason: str | None = None) -> Contender:
        def run(documents: int) -> Mapping[str, Mapping[str, float]]:
            had.append(name)
            if name == "fails" and had.count(name) == 2:
                raise RetryableError("its log ends here\nand goes on")
            return {name: {"documents_per_s": rate}}

        return Contender(name, lambda: reason, run)

    monkeypatch.setattr(comparing, "KEYTIDE", contender("keytide", 100))
    others = (
        contender("works", 50),
        contender("fails", 20),
        contender("away", 1, "away: apt-get install it"),
    )
    monkeypatch.setattr(comparing, "PEERS", others)
    return had


def test_all_have_turns_in_another_order_each_time_and_who_cannot_is_told_of(turns: list[str]) -> None:
    result = peers(1_000)
    assert [turns[at : at + 3] for at in (0, 3, 6)] == [
        ["keytide", "works", "fails"],
        ["works", "fails", "keytide"],
        ["fails", "keytide", "works"],
    ]
    assert result.notes == ["away: apt-get install it", "fails failed in run 2: its log ends here"]
    assert [sorted(run) for run in result.sizes["runs"]] == [
        ["fails", "keytide", "works"],
        ["keytide", "works"],
        ["fails", "keytide", "works"],
    ]
    assert result.figures["ratio_works"] == 2.0
    assert result.name == "peers-1k"


def test_keytide_itself_must_not_fail(turns: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(documents: int) -> Mapping[str, Mapping[str, float]]:
        raise RetryableError("not READY")

    monkeypatch.setattr(comparing, "KEYTIDE", Contender("Keytide", lambda: None, fails))
    with pytest.raises(RetryableError, match="not READY"):
        peers(1_000)


# --- who is not there -------------------------------------------------------------------------------------


def test_without_its_programs_postgresql_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "postgres_programs", lambda: None)
    assert "apt-get install postgresql" in (postgresql.why_not() or "")
    monkeypatch.setattr(postgresql, "postgres_programs", lambda: Path("bin"))
    assert postgresql.why_not() is None


@pytest.mark.parametrize("compiler", [False, True])
def test_without_a_compiler_or_its_jars_kafka_streams_says_how_to_get_them(
    compiler: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "java"
    program.write_text(f"#!/bin/sh\necho java.base@17\n{'echo jdk.compiler@17' if compiler else ''}\n")
    program.chmod(0o755)

    def jars_of(*_: object) -> NoReturn:
        raise JarsError("They could not be fetched:\n  no route to the mirror", next_step="")

    monkeypatch.setattr(kafka_streams, "find_java", lambda: Java(program, "17", "PATH"))
    monkeypatch.setattr(kafka_streams, "jars_of", jars_of)
    said = kafka_streams.why_not() or ""
    assert ("no route to the mirror" if compiler else "apt-get install openjdk-17-jdk-headless") in said
    assert "\n" not in said


def test_where_it_cannot_be_installed_quix_streams_says_how_and_leaves_nothing_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **_: object) -> None:
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True)
        else:
            raise subprocess.CalledProcessError(1, command, stderr="looking\nno matching distribution\n")

    monkeypatch.setenv("KEYTIDE_CACHE", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", run)
    said = quix_streams.why_not() or ""
    assert "no matching distribution" in said
    assert f"pip install {quix_streams.PACKAGE}" in said
    assert "\n" not in said
    assert list((tmp_path / "peers").iterdir()) == []


def test_a_connection_that_a_peer_has_closed_meanwhile_is_made_anew() -> None:
    """Each answer is the last one of its connection, and does not say so."""

    class Closing(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"true")
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Closing)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    try:
        assert [get(connection, "/ready") for _ in range(3)] == [b"true"] * 3
    finally:
        connection.close()
        server.shutdown()
        thread.join()
        server.server_close()
