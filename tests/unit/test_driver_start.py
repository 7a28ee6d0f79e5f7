"""What a driver does without, so that a small build is READY soon."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from keytide.http import blocking_nodes
from keytide.http.blocking_nodes import BlockingNodeClient
from keytide.http.node_protocol import NoAnswerError
from keytide.model.timestamp import Timestamp
from keytide.settings.settings import load_settings
from streaming.backfill import queries
from streaming.backfill.batches import Batches
from streaming.backfill.queries import LocalQuery
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

    class Client:
        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(queries, "admin", lambda _: Client())
    monkeypatch.setattr(queries, "list_offsets", ends)
    engine: Any = SimpleNamespace(close=lambda: None)
    plan: Any = SimpleNamespace(keyspace="people", topic_id="t")
    batches: Any = SimpleNamespace(read_on=functools.partial(Batches.read_on, object()))
    query = LocalQuery(load_settings(), engine, plan, batches, 1, 100)
    query.start(Timestamp())
    wait_for(asked.is_set, "a look at the source")
    worker = query._worker
    assert worker is not None
    query.stop()
    assert not worker.running
