"""What a driver does without, so that a small build is READY soon."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from keytide.http import blocking_nodes
from keytide.http.blocking_nodes import BlockingNodeClient
from keytide.http.node_protocol import NoAnswerError
from keytide.model.timestamp import Timestamp
from keytide.process.title import ROOM
from keytide.settings.settings import load_settings
from streaming.backfill import queries
from streaming.backfill.batches import Batches
from streaming.backfill.queries import LocalQuery
from streaming.in_waiting import Orders
from tests.waiting import wait_for

LOADED = """
import sys
import streaming.backfill.driver, streaming.verify.driver, streaming.sample.sampling
from streaming.drivers.stages import LocalStages, Shuffle
from streaming.drivers.without_pandas import do_without_pandas

do_without_pandas()
import pyarrow as pa
task = lambda rows: (pa.RecordBatch.from_pylist([{"route": 0, "key": b"a"}]) for _ in rows)
found = list(LocalStages(lambda: None).shuffle(2, Shuffle(task, lambda rows: rows, "", 1, ("key",))))
assert len(found) == 2
print(sorted({"pandas", "pyspark", "py4j", "httpx", "fastapi"} & sys.modules.keys()))
import pandas
print(pandas.DataFrame({"a": [1]}).a.sum())
"""


def test_a_driver_loads_neither_spark_nor_pandas_before_it_needs_them() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True)
    assert done.stdout.split("\n")[:2] == ["[]", "1"], done.stderr


def test_whom_one_trusts_is_read_when_a_node_has_a_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(authority: str) -> Any:
        raise LookupError(authority)

    monkeypatch.setattr(blocking_nodes, "trusted", read)
    client = BlockingNodeClient("who", limit_s=1)
    with pytest.raises(NoAnswerError):
        client.ask("http://127.0.0.1:1/", b"", "5e")
    with pytest.raises(LookupError, match="who"):
        client.ask("https://127.0.0.1:1/", b"", "5e")
    client.close()


def test_reading_without_spark_ends_when_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """It once went on asking Kafka, without a pause, for as long as the driver lived."""
    asked = threading.Event()

    def ends(*_: Any) -> dict[int, int]:
        asked.set()
        return {0: 0}

    class NoClient:
        def __enter__(self) -> NoClient:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(queries, "admin", lambda _: NoClient())
    monkeypatch.setattr(queries, "list_offsets", ends)
    engine: Any = SimpleNamespace(close=lambda: None)
    plan: Any = SimpleNamespace(keyspace="people", topic_id="t")
    nothing: Any = object()
    batches: Any = SimpleNamespace(read_on=functools.partial(Batches.read_on, nothing))
    query = LocalQuery(load_settings(), engine, plan, batches, 1, 100)
    query.start(Timestamp())
    wait_for(asked.is_set, "a look at the source")
    worker = query._worker
    assert worker is not None
    query.stop()
    assert not worker.running


SHOWN = """
import os, pathlib, sys
print(__name__, sys.argv[1:], os.environ["KEYTIDE_ATTEMPT"], repr(sys.stdin.read()))
print("streaming.verify.driver" in sys.modules)
print(pathlib.Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0").split(b"\\0")[1:])
print("told", file=sys.stderr, flush=True)
sys.exit(4)
"""


def waiting(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "streaming.in_waiting", ROOM],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )


def test_a_driver_that_waited_is_as_if_it_had_been_started(tmp_path: Path) -> None:
    (tmp_path / "shown_driver.py").write_text(SHOWN)
    log = tmp_path / "driver.log"
    log.write_text("before\n")
    orders = Orders("shown_driver", ["--build", "b7"], str(log), {"KEYTIDE_ATTEMPT": "2.9"})
    process = waiting(tmp_path)
    process.communicate(msgspec.json.encode(orders) + b"\n")
    assert process.returncode == 4
    before, told, loaded, shown, last = log.read_text().splitlines()
    assert (before, told, last) == ("before", "__main__ ['--build', 'b7'] 2.9 ''", "told")
    assert loaded == "True"
    if sys.platform == "linux":
        assert shown == "[b'-m', b'shown_driver', b'--build', b'b7']"


@pytest.mark.parametrize("line", [b"", b'{"module": "shown_dr'])
def test_one_that_is_told_nothing_ends(tmp_path: Path, line: bytes) -> None:
    process = waiting(tmp_path)
    process.communicate(line)
    assert process.returncode == 0
