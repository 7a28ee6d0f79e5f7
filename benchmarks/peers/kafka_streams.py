"""Kafka Streams: the program in `streams/`, run from its source; fetches its jars when it is asked for."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from benchmarks.documents import PARTITIONS
from benchmarks.latency import connect
from benchmarks.patience import limit
from benchmarks.peers.turn import START_LIMIT_S, Turn, begin, get, ranges, wait
from benchmarks.throughput import TOPIC
from deploy.jars import JavaParts, jars_of
from deploy.java import find_java
from deploy.process import ChildProcess, free_ports, is_free
from keytide.errors import KeytideError, invariant

FOLDER: Final = Path(__file__).parent / "streams"
PARTS: Final = JavaParts(
    FOLDER / "ivy.xml", ("streams",), "Kafka Streams and RocksDB, a peer of benchmarks", 90
)
THREADS: Final = 2
WAYS: Final = {"kafka_streams": "one", "kafka_streams_each": "each"}
"""Name in a run -> which stores: one, behind a repartition topic, or one of each source partition."""
JVM: Final = (
    "-Xms512m",
    "-Xmx2g",
    "-Dsun.net.httpserver.nodelay=true",  # else its answers wait for the client's acknowledgement
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


def why_not() -> str | None:
    """Why it cannot take part, and how it could; None when it can. Fetches its jars."""
    command = [str(find_java().path), "--list-modules"]
    modules = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    if "jdk.compiler@" not in modules:
        return "Kafka Streams is not run, as Java has no compiler: apt-get install openjdk-17-jdk-headless"
    try:
        jars_of("streams", PARTS)
    except KeytideError as error:
        reason = error.message.splitlines()[-1].strip()
        return f"Kafka Streams is not run, as its jars cannot be fetched ({reason}): see `make jars`"
    return None


def run(documents: int) -> dict[str, dict[str, float]]:
    """With one store, then with one of each partition."""
    found = {}
    for name, stores in WAYS.items():
        with begin(documents) as turn:
            found[name] = _turn(turn, stores)
    return found


def _turn(turn: Turn, stores: str) -> dict[str, float]:
    (port,) = free_ports(1)
    jars = ":".join(map(str, jars_of("streams", PARTS)))
    program = str(FOLDER / "Streams.java")
    given = (turn.kafka.bootstrap, TOPIC, PARTITIONS, turn.folder / "state", port, stores, THREADS)
    command = [str(find_java().path), *JVM, "-cp", jars, program, *map(str, given)]
    with ChildProcess("Kafka Streams", command, log=turn.folder / "streams.log") as child:
        wait([child], lambda: not is_free(port), limit(START_LIMIT_S), "answers")
        connection = connect(f"http://127.0.0.1:{port}")
        wait(
            [child], lambda: get(connection, "/ready") == b"true", limit(START_LIMIT_S), "has its partitions"
        )

        def found(ends: Mapping[int, int]) -> Callable[[], bool]:
            left = [urlencode({"id": id_, "city": city, "age": age}) for id_, city, age in turn.lasts(ends)]

            def all_found() -> bool:
                while left and get(connection, f"/has?{left[-1]}") == b"true":
                    left.pop()
                return not left

            return all_found

        figures = turn.measure([child], found)
        counted = int(get(connection, "/count"))
        invariant(counted == turn.documents, "BenchmarkPeer", f"Kafka Streams has {counted} entries")

        def ask(low: str, rows: int) -> Sequence[object]:
            answer: list[object] = json.loads(get(connection, f"/range?low={low}&limit={rows}"))["rows"]
            return answer

        return figures | ranges(ask)
