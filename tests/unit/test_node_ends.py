"""A node whose request finds an invariant broken: it answers, tells the story, and ends with status 70."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

NODE = '''
import sys

import indexer.serve.service
from indexer.__main__ import main
from indexer.hosting.node import ServingNode
from keytide.errors import InvariantViolationError
from tests.unit.scan_world import World


class Idle:
    """In place of the ingest thread: there is no Kafka."""

    def __init__(self, *_):
        pass

    def run(self, stop, started):
        started.set()
        stop.wait()


def published(self, index):
    raise InvariantViolationError("Untorn", "the story of it")


catalog = World("CREATE INDEX by_city ON users (city) WITH (slices=1)", node_count=1).catalog
ServingNode.catalog = lambda self: catalog
ServingNode.published = published
indexer.serve.service.Ingest = Idle
sys.exit(main())
'''


def test_a_broken_invariant_is_answered_and_ends_the_node_with_its_story(tmp_path: Path) -> None:
    environment = {**os.environ, "KEYTIDE_DATA_DIR": str(tmp_path), "KEYTIDE_INDEXER__PORT": "0"}
    node = subprocess.Popen(
        [sys.executable, "-c", NODE],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert node.stdout is not None
        url = node.stdout.readline().split()[1]
        with urllib.request.urlopen(f"{url}/healthz", timeout=300) as answer:
            assert answer.status == 200
        request = urllib.request.Request(f"{url}/v1/indexes/by_city/scan", b"{}", method="POST")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=300)
        assert caught.value.code == 500
        assert b"invariant-violated" in caught.value.read()
        _, told = node.communicate(timeout=300)
        assert node.returncode == 70
        assert "the story of it" in told
    finally:
        node.kill()
        node.wait()
