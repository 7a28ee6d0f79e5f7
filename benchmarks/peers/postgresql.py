"""Peers on the same documents, in the same run: a Keytide build, then PostgreSQL, both from one Kafka topic.

Theory of operation: the topic is filled once. Keytide builds its index, and its processes are stopped (Kafka
stays). Then PostgreSQL gets the documents: two clients, each with half of the partitions, read them with
librdkafka and COPY them into one table (document id, document as `json`), and the index over the same two
fields of the documents is made behind that, with the primary key that updates would need. fsync is on, and
the last WAL is flushed before the clock stops. PostgreSQL comes from the system's packages and runs in a
temporary folder; without it, or another peer, the result says what could not be started.
"""

from __future__ import annotations

import multiprocessing
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
from confluent_kafka import Consumer, TopicPartition

from benchmarks.building import NAME
from benchmarks.documents import PARTITIONS, load
from benchmarks.harness import Bench, Result, machine_state, say
from benchmarks.throughput import BY_CITY, MILLION, TOPIC
from deploy.process import free_ports
from keytide.errors import RetryableError, invariant

CLIENTS: Final = 2
START_LIMIT_S: Final = 60.0
BATCH: Final = 20_000
SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "1GB",
    "maintenance_work_mem": "512MB",
    "max_wal_size": "8GB",
    "max_parallel_maintenance_workers": "2",
}
"""More memory than the defaults, and both cores for the index: what an administrator would give it here."""
INDEX: Final = (
    "ALTER TABLE people ADD PRIMARY KEY (id)",
    "CREATE INDEX by_city ON people ((document->>'city'), ((document->>'age')::int))",
    "CHECKPOINT",
)


def peers(documents: int = MILLION) -> Result:
    """Documents in Kafka until one index over all of them is complete: Keytide's build, PostgreSQL's COPY and
    CREATE INDEX."""
    size = "" if documents == MILLION else f"-{documents // MILLION}m"
    result = Result(f"peers{size}", machine=machine_state())
    result.sizes = {"documents": documents, "partitions": PARTITIONS, "postgresql_clients": CLIENTS}
    with Bench() as bench:
        bench.make_topic(TOPIC, PARTITIONS)
        load(bench.bootstrap, TOPIC, range(documents))
        statement = BY_CITY.replace("slices=8", "slices=8, defer_build=true")
        bench.admin.call("POST", "/v1/statements", {"statement": statement})
        build = bench.wait_build(bench.admin.call("POST", "/v1/builds", {"indexes": [NAME], "verify": False}))
        seconds = (build["finished_at"] - (build.get("first_read_at") or build["started_at"])) / 1000
        result.figures["documents_per_s"] = round(documents / seconds)
        say(f"keytide: {result.figures['documents_per_s']:,} documents/s")
        with bench.at_rest():
            _postgres(result, bench, documents)
    for peer in ("Kafka Streams", "Quix Streams"):
        result.notes.append(f"{peer} is not run: it is not among what Keytide installs")
    return result


def _postgres(result: Result, bench: Bench, documents: int) -> None:
    """Add PostgreSQL's figures, or why there are none."""
    programs = postgres_programs()
    if programs is None:
        result.notes.append("PostgreSQL could not be started: its programs are not installed")
        return
    with postgres_server(programs) as address, psycopg.connect(address, autocommit=True) as connection:
        version = connection.execute("SHOW server_version").fetchone()
        result.sizes["postgresql"] = version[0] if version else ""
        connection.execute("CREATE TABLE people (id text NOT NULL, document json NOT NULL)")
        ends = bench.ends(TOPIC)
        began = time.monotonic()
        clients = multiprocessing.get_context("spawn")
        working = [
            clients.Process(
                target=copy,
                args=(
                    bench.bootstrap,
                    address,
                    {p: end for p, end in ends.items() if p % CLIENTS == number},
                ),
            )
            for number in range(CLIENTS)
        ]
        for one in working:
            one.start()
        for one in working:
            one.join()
        invariant(all(one.exitcode == 0 for one in working), "BenchmarkPeer", "a client of PostgreSQL failed")
        copied = time.monotonic()
        for statement in INDEX:
            connection.execute(statement)
        seconds = time.monotonic() - began
        found = connection.execute("SELECT count(*) FROM people").fetchone()
        invariant(found == (documents,), "BenchmarkPeer", f"PostgreSQL has {found} of {documents} documents")
    result.figures["postgresql_documents_per_s"] = round(documents / seconds)
    result.figures["postgresql_copy_s"] = round(copied - began, 2)
    result.figures["postgresql_index_s"] = round(seconds - (copied - began), 2)
    say(f"postgresql: {documents / seconds:,.0f} documents/s")


def copy(bootstrap: str, address: str, ends: dict[int, int]) -> None:
    """One client: partitions of the topic, from their beginning to `ends`, into the table."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": "bench-peer",
        "enable.auto.commit": False,
        "fetch.queue.backoff.ms": 2,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in ends])
    left = sum(ends.values())
    with psycopg.connect(address) as connection, connection.cursor() as cursor:
        while left > 0:
            messages = consumer.consume(min(BATCH, left), 1.0)
            with cursor.copy("COPY people (id, document) FROM STDIN (FORMAT binary)") as rows:
                rows.write(_HEAD + b"".join(map(_row, messages)) + _TAIL)
            connection.commit()
            left -= len(messages)
    consumer.close()


_HEAD: Final = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_TAIL: Final = b"\xff\xff"
_FIELDS: Final = (2).to_bytes(2, "big")


def _row(message: Any) -> bytes:
    """A row of PostgreSQL's binary COPY format."""
    key, value = message.key(), message.value()
    return b"".join((_FIELDS, len(key).to_bytes(4, "big"), key, len(value).to_bytes(4, "big"), value))


def postgres_programs() -> Path | None:
    """The folder with `initdb` and `postgres`, the newest release's; None when there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda at: int(at.parts[-3]))
    path = str(found[-1]) if found else shutil.which("initdb")
    return Path(path).resolve().parent if path else None


@contextmanager
def postgres_server(programs: Path) -> Iterator[str]:
    """A PostgreSQL of its own; gives its address. It refuses to run as root: then it runs as its own user."""
    root = os.getuid() == 0
    known = {one.pw_name: one for one in pwd.getpwall()}
    user = (known.get("postgres") or known["nobody"]) if root else None
    who: dict[str, Any] = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}
    folder = Path(tempfile.mkdtemp(prefix="keytide-peer-"))
    if user:
        os.chown(folder, user.pw_uid, user.pw_gid)
    (port,) = free_ports(1)
    data, server = folder / "data", None
    try:
        options = ["-D", str(data), "-U", "bench", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"]
        subprocess.run([programs / "initdb", *options], check=True, capture_output=True, cwd="/", **who)
        given = {**SETTINGS, "port": str(port), "unix_socket_directories": str(folder)}
        words = [word for name, value in given.items() for word in ("-c", f"{name}={value}")]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [programs / "postgres", "-D", data, *words], stdout=log, stderr=log, cwd="/", **who
            )
        address = f"host=127.0.0.1 port={port} user=bench dbname=postgres"
        _wait_for(address, server, folder / "log")
        yield address
    finally:
        if server is not None and server.poll() is None:
            server.send_signal(signal.SIGQUIT)
            server.wait(START_LIMIT_S)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        try:
            psycopg.connect(address, connect_timeout=5).close()
            return
        except psycopg.OperationalError as error:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RetryableError(f"PostgreSQL does not answer: {log.read_text()[-500:]}") from error
            time.sleep(0.05)
