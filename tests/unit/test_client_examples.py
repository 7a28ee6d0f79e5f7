"""The examples in the client's docstrings give what they show."""

from __future__ import annotations

import asyncio
import doctest
import importlib
import pkgutil
import re
from functools import partial
from pathlib import Path

import httpx
import pytest
from kafka.producer.future import RecordMetadata

import keytide.client
from tests.unit.client_kit import small_node

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(f"keytide.client.{module.name}" for module in pkgutil.iter_modules(keytide.client.__path__))


def metadata(topic: str, partition: int, offset: int) -> RecordMetadata:
    return RecordMetadata(topic, partition, (topic, partition), offset, 0, None, 0, 0, 0)


def examples(module: str) -> list[doctest.DocTest]:
    transport = httpx.MockTransport(small_node)
    names = {
        "asyncio": asyncio,
        "Client": partial(keytide.client.Client, transport=transport),
        "AsyncClient": partial(keytide.client.AsyncClient, transport=transport),
        "client": keytide.client.Client("http://127.0.0.1:8093", transport=transport),
        "RecordMetadata": metadata,
        "Writes": keytide.client.Writes,
    }
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = finder.find(importlib.import_module(module), extraglobs=names)
    return [one for one in found if one.examples]


@pytest.mark.parametrize("module", MODULES)
def test_examples_give_what_they_show(module: str) -> None:
    told: list[str] = []
    for one in examples(module):
        doctest.DocTestRunner().run(one, out=told.append)
    assert not told, "".join(told)


def test_producers_in_the_documents_name_their_partitioner_and_find_their_broker() -> None:
    """librdkafka's default puts documents where Java's and kafka-python's producers do not, and a local
    cluster's broker listens where its folder says."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            assert "127.0.0.1:9092" not in block, page
            for config in re.findall(r"\bProducer\((\{.*?\})\)", block, re.DOTALL):
                assert '"partitioner": "murmur2_random"' in config, page


def test_the_public_classes_have_examples() -> None:
    named = {one.name.rpartition("keytide.client.")[2] for module in MODULES for one in examples(module)}
    methods = ("scan", "page", "count", "aggregate", "query", "explain", "snapshot", "tail", "indexes")
    assert named >= {"client.Client", "client.AsyncClient", "writes.Writes", "results.Scan"}
    assert named >= {f"client.BaseClient.{method}" for method in methods}
