"""PostgreSQL, from the system's packages, in a temporary folder: as a peer, and for those who ask it more.

Theory of operation: two clients, each with half of the partitions, read the documents with librdkafka. Twice:

* *upsert*, what is kept up to date: batches of 5,000 are copied into a temporary table and from there into
  one that has its primary key and the index on city, age and id already; each batch is a commit, flushed to
  the disk. Ranges are asked of that table by pgbench, after a VACUUM: the index alone answers them.
* *copy*, what is loaded at once: everything is copied into a table without keys, then the primary key and the
  index on two fields of the documents are made, and the last WAL is flushed before the clock stops.

The clients are Python processes that have begun before the clock starts.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg
from confluent_kafka import Consumer, Message, TopicPartition

from benchmarks.documents import CITIES
from benchmarks.harness import percentiles
from benchmarks.peers.spread import POSTGRESQL_COPY
from benchmarks.peers.turn import ROWS, Turn, begin, range_figures, rate
from benchmarks.throughput import TOPIC
from benchmarks.watching import Watch, calm
from deploy.process import free_ports
from keytide.errors import RetryableError, invariant
from keytide.process.parent_death import die_with_parent

CLIENTS: Final = 2
START_LIMIT_S: Final = 60.0
RANGES_S: Final = 8
COPY_BATCH: Final = 20_000
UPSERT_BATCH: Final = 5_000
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
COPY_TABLE: Final = "CREATE TABLE people (id text NOT NULL, document json NOT NULL)"
INDEX: Final = (
    "ALTER TABLE people ADD PRIMARY KEY (id)",
    "CREATE INDEX by_city ON people ((document->>'city'), ((document->>'age')::int))",
    "CHECKPOINT",
)
UPSERT_TABLE: Final = (
    "CREATE TABLE people (id text PRIMARY KEY, document json NOT NULL, city text NOT NULL, age int NOT NULL)",
    "CREATE INDEX by_city ON people (city, age, id)",
)
BATCH_TABLE: Final = "CREATE TEMPORARY TABLE batch (id text, document json) ON COMMIT DELETE ROWS"
UPSERT: Final = """
INSERT INTO people SELECT id, document, document->>'city', (document->>'age')::int FROM batch
    ON CONFLICT (id) DO UPDATE SET document = excluded.document, city = excluded.city, age = excluded.age
"""
RANGE: Final = f"""\\set n random(0, {CITIES - ROWS})
SELECT city, age, id FROM people WHERE city >= 'city-' || lpad(:n::text, 5, '0')
    ORDER BY city, age, id LIMIT {ROWS};
"""


def why_not() -> str | None:
    """Why it cannot take part, and how it could; None when it can."""
    if postgres_programs() is None:
        return "PostgreSQL is not run, as its programs are not installed: apt-get install postgresql"
    return None


def run(documents: int) -> dict[str, dict[str, float]]:
    """Both turns, from one topic."""
    programs = postgres_programs()
    if programs is None:
        raise RetryableError("PostgreSQL is not installed")
    with (
        begin(documents) as turn,
        postgres_server(programs) as address,
        psycopg.connect(address, autocommit=True) as connection,
    ):
        ends = turn.fill()
        for statement in UPSERT_TABLE:
            connection.execute(statement)
        kept = _measure(turn, ends, connection, address, upsert, ())
        connection.execute("VACUUM ANALYZE people")
        kept |= _ranges(programs, address, turn.folder)
        connection.execute("DROP TABLE people")
        connection.execute(COPY_TABLE)
        return {
            "postgresql_upsert": kept,
            POSTGRESQL_COPY: _measure(turn, ends, connection, address, copy, INDEX),
        }


def _measure(
    turn: Turn,
    ends: Mapping[int, int],
    connection: psycopg.Connection,
    address: str,
    client: Callable[[str, str, Connection], None],
    after: tuple[str, ...],
) -> dict[str, float]:
    """From when the clients may read until all is in the table and the statements after that are done."""
    first = int(psutil.Process(connection.info.backend_pid).ppid())  # of which all others are children
    with _clients(client, turn.kafka.bootstrap, address) as clients:
        watch = Watch(
            lambda: {
                "kafka": turn.kafka.pid,
                "postgresql": first,
                **{f"client {number}": process.pid or 0 for number, (process, _) in enumerate(clients)},
            }
        )
        try:
            began = time.monotonic()
            for number, (_, pipe) in enumerate(clients):
                pipe.send({p: end for p, end in ends.items() if p % CLIENTS == number})
            for _, pipe in clients:
                _answer(pipe, turn.limit_s)
            for statement in after:
                connection.execute(statement)
            seconds = time.monotonic() - began
        finally:
            watch.stop()
    found = connection.execute("SELECT count(*) FROM people").fetchone()
    invariant(found == (turn.documents,), "BenchmarkPeer", f"PostgreSQL has {found} documents")
    return rate(turn.documents, seconds, watch)


@contextmanager
def _clients(
    client: Callable[[str, str, Connection], None], bootstrap: str, address: str
) -> Iterator[list[tuple[multiprocessing.process.BaseProcess, Connection]]]:
    """Clients that are connected and wait for what they are to read; ended with the block."""
    context = multiprocessing.get_context("spawn")
    clients: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []
    try:
        for _ in range(CLIENTS):
            own, given = context.Pipe()
            process: multiprocessing.process.BaseProcess
            process = context.Process(target=client, args=(bootstrap, address, given), daemon=True)
            process.start()
            given.close()
            clients.append((process, own))
        for _, pipe in clients:
            _answer(pipe, START_LIMIT_S)
        yield clients
    finally:
        for process, pipe in clients:
            pipe.close()
            process.join(5)
            process.kill()


def _answer(pipe: Connection, limit_s: float) -> None:
    """Wait for a word of a client.

    Raises:
        RetryableError: it ended, or `limit_s` have passed.
    """
    try:
        if not pipe.poll(limit_s):
            raise RetryableError(f"a client of PostgreSQL has not done its work after {limit_s:.0f} s")
        pipe.recv()
    except EOFError as error:
        raise RetryableError("a client of PostgreSQL failed") from error


def copy(bootstrap: str, address: str, pipe: Connection) -> None:
    """A client that copies its partitions into the table."""
    with psycopg.connect(address) as connection, connection.cursor() as cursor:
        for messages in _batches(bootstrap, pipe, COPY_BATCH):
            with cursor.copy("COPY people (id, document) FROM STDIN (FORMAT binary)") as rows:
                rows.write(_HEAD + b"".join(map(_row, messages)) + _TAIL)
            connection.commit()


def upsert(bootstrap: str, address: str, pipe: Connection) -> None:
    """A client that brings the table up to date; of what comes twice in a batch the last counts."""
    with psycopg.connect(address) as connection, connection.cursor() as cursor:
        cursor.execute(BATCH_TABLE)
        connection.commit()
        for messages in _batches(bootstrap, pipe, UPSERT_BATCH):
            last = {message.key(): message for message in messages}
            with cursor.copy("COPY batch (id, document) FROM STDIN (FORMAT binary)") as rows:
                rows.write(_HEAD + b"".join(map(_row, last.values())) + _TAIL)
            cursor.execute(UPSERT)
            connection.commit()


def _batches(bootstrap: str, pipe: Connection, size: int) -> Iterator[list[Message]]:
    """What the partitions have that it is told, from their beginning; says when it may begin and has done."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": "bench-peer",
        "enable.auto.commit": False,
        "fetch.queue.backoff.ms": 2,
    }
    consumer = Consumer(settings)
    pipe.send("ready")
    ends: dict[int, int] = pipe.recv()
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in ends])
    left = sum(ends.values())
    while left > 0:
        if messages := consumer.consume(min(size, left), 1.0):
            yield messages
            left -= len(messages)
    consumer.close()
    pipe.send("done")


_HEAD: Final = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_TAIL: Final = b"\xff\xff"
_FIELDS: Final = (2).to_bytes(2, "big")


def _row(message: Any) -> bytes:
    """A row of PostgreSQL's binary COPY format."""
    key, value = message.key(), message.value()
    return b"".join((_FIELDS, len(key).to_bytes(4, "big"), key, len(value).to_bytes(4, "big"), value))


def _ranges(programs: Path, address: str, folder: Path) -> dict[str, float]:
    """Figures of pages of 100 rows, over one connection; none without pgbench."""
    program = programs / "pgbench"
    if not program.exists():
        return {}
    script = folder / "range.sql"
    script.write_text(RANGE)
    calm()
    return range_figures(percentiles(pgbench(program, address, script, 1, RANGES_S, folder)))


def pgbench(
    program: Path, address: str, script: Path, connections: int, seconds: int, folder: Path
) -> list[float]:
    """Milliseconds of each transaction of pgbench, which prepares its statements: from its log."""
    prefix = folder / f"pgbench-{connections}"
    command = [str(program), "-n", "-M", "prepared", "-c", str(connections), "-j", "1", "-T", str(seconds)]
    command += ["-f", str(script), "-l", f"--log-prefix={prefix}", address]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=60 + seconds)
    logs = folder.glob(f"{prefix.name}.*")
    return [int(line.split()[2]) / 1000 for log in logs for line in log.read_text().splitlines()]


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
                [programs / "postgres", "-D", data, *words],
                stdout=log,
                stderr=log,
                cwd="/",
                process_group=0,  # Ctrl-C reaches this process alone, which ends it
                preexec_fn=die_with_parent(),
                **who,
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
