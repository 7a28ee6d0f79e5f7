"""Pages of 100 rows for many at once: 1, 4, 16 and 64 connections, of a node alone and of one with scan
processes, and PostgreSQL in the same run.

Theory of operation
===================
*Closed loop*: each connection asks again as soon as it is answered, which shows how much a node answers, and
how evenly. wrk asks Keytide and pgbench PostgreSQL: both are C, and take little of the machine. PostgreSQL
has the same values in columns, with an index that has all that is asked for, and prepares its statement.

*Open loop*: requests are due at a rate, whether those before were answered or not, and what one takes counts
from when it was due. So what waits in a queue is counted, as users feel it; a closed loop asks less of who is
slow. A process of its own asks over several connections, each request over the one that is free for longest.
It asks for half of what 16 connections get in a closed loop, for nine tenths, and for half more than that:
then a node has to refuse some (503), and what it does answer should take no longer than at its limit.

Everybody's queries begin at one of the same cities, drawn at random.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg

from benchmarks.documents import CITIES, document, document_id
from benchmarks.harness import Result, machine_state, percentiles, say
from benchmarks.latency import filled, scan_body
from benchmarks.peers.postgresql import RANGE, pgbench, postgres_programs, postgres_server
from benchmarks.throughput import MILLION
from keytide.errors import RetryableError, invariant

CONNECTIONS: Final = (1, 4, 16, 64)
SECONDS: Final = 8
ROWS: Final = 100
OPEN_SHARES: Final = (0.5, 0.9, 1.5)
"""Of what 16 connections get in a closed loop."""
OPEN_CONNECTIONS: Final = 512
"""More than requests may wait (`http.max_waiting`), so that it is the node that decides about them."""
PROCESSES: Final = 2
"""Scan processes of a node that has some: as many as the smallest machine that is measured has cores."""
_PATH: Final = "/v1/indexes/by_city/scan"
_WRK: Final = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
math.randomseed(7)
request = function()
    return wrk.format(nil, nil, nil, string.format('{"low":["city-%%05d"],"limit":%d}', math.random(0, %d)))
end
done = function(summary, latency)
    local e = summary.errors
    local failed = e.connect + e.read + e.write + e.status + e.timeout
    io.write(string.format(
        'FOUND {"requests": %%d, "us": %%d, "failed": %%d, "p50": %%f, "p95": %%f, "p99": %%f}\\n',
        summary.requests, summary.duration, failed,
        latency:percentile(50) / 1000, latency:percentile(95) / 1000, latency:percentile(99) / 1000))
end
"""


def scan_load(documents: int = MILLION) -> Result:
    """Pages of 100 rows over many connections: how many a second, and how long each takes."""
    result = Result("scan-load", machine=machine_state())
    result.sizes = {
        "documents": documents,
        "rows": ROWS,
        "seconds": SECONDS,
        "slices": 8,
        "nodes": 1,
        "scan_processes": PROCESSES,
    }
    if (wrk := shutil.which("wrk")) is None:
        raise RetryableError("wrk is not installed", next_step="apt-get install wrk")
    with tempfile.TemporaryDirectory(prefix="keytide-load-") as folder:
        script = Path(folder) / "scan.lua"
        script.write_text(_WRK % (ROWS, CITIES - ROWS))
        for processes in (PROCESSES, 0):
            given = {"KEYTIDE_INDEXER__SCAN_PROCESSES": str(processes)}
            with filled(1, documents, given) as bench, bench.measured(result):
                _keytide(result, "processes_" if processes else "", wrk, bench.cluster.node_urls[0], script)
        _postgres(result, documents, Path(folder))
    for count in CONNECTIONS:
        alone = result.figures[f"c{count}_per_s"]
        result.figures[f"processes_to_none_c{count}"] = round(
            result.figures[f"processes_c{count}_per_s"] / alone, 3
        )
    return result


def _keytide(result: Result, who: str, wrk: str, url: str, script: Path) -> None:
    """Add what a node answers.

    Args:
        who: what its figures' names begin with.
    """
    _closed(wrk, url, script, OPEN_CONNECTIONS // 8, seconds=2)  # (nobody's first pages count)
    for count in CONNECTIONS:
        _keep(result, f"{who}c{count}", _closed(wrk, url, script, count))
    for share in OPEN_SHARES:
        per_second = max(1, int(result.figures[f"{who}c16_per_s"] * share))
        _keep(result, f"{who}open_{round(share * 100)}", _open(url, per_second))


def _keep(result: Result, name: str, found: dict[str, float]) -> None:
    result.figures.update({f"{name}_{key}": value for key, value in found.items()})
    say(f"{name}: " + ", ".join(f"{key} {value:,}" for key, value in found.items()))


def _closed(wrk: str, url: str, script: Path, connections: int, seconds: int = SECONDS) -> dict[str, float]:
    """What wrk finds."""
    command = [
        wrk,
        "-t1",
        f"-c{connections}",
        f"-d{seconds}",
        "--timeout",
        "10",
        "-s",
        str(script),
        url + _PATH,
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60 + seconds)
    told = re.search(r"^FOUND (.*)$", done.stdout, re.MULTILINE)
    invariant(told is not None, "BenchmarkLoad", f"wrk says nothing of what it found: {done.stdout}")
    found: dict[str, float] = json.loads(told.group(1)) if told else {}
    figures: dict[str, float] = {"per_s": round(found["requests"] / found["us"] * 1e6)}
    figures |= {f"{name}_ms": round(found[name], 3) for name in ("p50", "p95", "p99")}
    if found["failed"]:
        figures["failed"] = found["failed"]
    return figures


# --- open loop --------------------------------------------------------------------------------------------


def _open(url: str, per_second: int) -> dict[str, float]:
    """What a process finds that asks at a rate."""
    command = [sys.executable, "-m", "benchmarks.scan_load", url, str(per_second)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120 + SECONDS)
    found: dict[str, float] = json.loads(done.stdout)
    return found


async def open_loop(
    url: str, per_second: int, connections: int = OPEN_CONNECTIONS, seconds: int = SECONDS
) -> dict[str, float]:
    """Ask at a rate for so many seconds.

    Returns:
        Milliseconds from when requests were due to their rows, how many a second were due, how many were
        refused (503: `refused`) or answered otherwise (`failed`), and how late at most this process itself
        was (`own_late_ms`): when that is much, the figures are its own.
    """
    address = urlsplit(url)
    free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(connections):
        free.put_nowait(await asyncio.open_connection(address.hostname, address.port))
    chance, took, own_late = random.Random(7), list[float](), 0.0
    without_rows = {"refused": 0, "failed": 0}

    async def ask(due: float, body: bytes) -> None:
        reader, writer = await free.get()
        writer.write(
            b"POST %b HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (_PATH.encode(), address.netloc.encode(), len(body), body)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        size = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        await reader.readexactly(int(size.group(1)) if size else 0)
        if head.startswith(b"HTTP/1.1 200"):
            took.append((time.perf_counter() - due) * 1000)
        else:
            without_rows["refused" if head.startswith(b"HTTP/1.1 503") else "failed"] += 1
        free.put_nowait((reader, writer))

    began = time.perf_counter()
    asking: set[asyncio.Task[None]] = set()
    for number in range(per_second * seconds):
        due = began + number / per_second
        if (ahead := due - time.perf_counter()) > 0:
            await asyncio.sleep(ahead)
        own_late = max(own_late, time.perf_counter() - due)
        task = asyncio.ensure_future(ask(due, scan_body(chance, ROWS)))
        asking.add(task)
        task.add_done_callback(asking.discard)
    await asyncio.gather(*asking)
    while not free.empty():
        _, writer = free.get_nowait()
        writer.close()
    found = {"per_s": float(per_second), **percentiles(took), "own_late_ms": round(own_late * 1000, 1)}
    return found | {name: count for name, count in without_rows.items() if count}


# --- PostgreSQL -------------------------------------------------------------------------------------------


def _postgres(result: Result, documents: int, folder: Path) -> None:
    """Add PostgreSQL's figures and the ratios, or why there are none."""
    programs = postgres_programs()
    if programs is None or not (programs / "pgbench").exists():
        result.notes.append("PostgreSQL could not be started: its programs are not installed")
        return
    with people(programs, documents) as address:
        script = folder / "scan.sql"
        script.write_text(RANGE)
        for count in CONNECTIONS:
            took = pgbench(programs / "pgbench", address, script, count, SECONDS, folder)
            found = {"per_s": round(len(took) / SECONDS), **percentiles(took)}
            _keep(result, f"postgresql_c{count}", found)
            ours = result.figures[f"c{count}_per_s"]
            result.figures[f"ratio_c{count}"] = round(ours / found["per_s"], 3)


@contextmanager
def people(programs: Path, documents: int) -> Iterator[str]:
    """A PostgreSQL that has the documents' keys and an index that has all of them; gives its address."""
    with postgres_server(programs) as address:
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("CREATE TABLE people (id text NOT NULL, city text NOT NULL, age int NOT NULL)")
            with connection.cursor() as cursor, cursor.copy("COPY people FROM STDIN") as rows:
                for number in range(documents):
                    parsed: dict[str, Any] = json.loads(document(number))
                    rows.write_row((document_id(number).decode(), parsed["city"], parsed["age"]))
            connection.execute("CREATE INDEX by_city ON people (city, age, id)")
            connection.execute(
                "VACUUM ANALYZE people"
            )  # (an index alone answers only what it knows is visible)
        yield address


if __name__ == "__main__":
    print(json.dumps(asyncio.run(open_loop(sys.argv[1], int(sys.argv[2])))))
