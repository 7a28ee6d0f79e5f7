"""What nodes ask each other, by somebody who means harm: no message changes the state of a slice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from indexer.copying.messages import COPY_PATH
from indexer.hosting.node import ServingNode
from indexer.scan.gather.peers import LEASE_PATH, READ_PATH
from indexer.serve.api import create_app
from keytide.http.node_protocol import PERIOD_MS, headers_of, opens
from keytide.settings.settings import load_settings
from keytide.wire.digests import VERIFY_PATH
from keytide.wire.index_lists import LISTS_PATH
from tests import share
from tests.fuzz.internal import InternalFuzz
from tests.live_node import BUILD, NUMBER, SECRET, LiveNode
from tests.unit.scan_world import of_the_cluster

encode = msgspec.msgpack.encode
INDEX = "by_city-1"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    made = LiveNode(tmp_path_factory.mktemp("node"))
    yield made
    made.close()


@pytest.fixture
def client(node: LiveNode) -> Iterator[TestClient]:
    with TestClient(create_app(node.view, load_settings(), CollectorRegistry())) as made:
        yield made
    node.check()


def read(spans: list[Any], after: bytes = b"", limit: int = 10, **others: Any) -> list[Any]:
    """A `ReadRequest` of the slice."""
    task, body = others.get("task", ""), others.get("body", b"")
    examine = others.get("examine", False)
    rest = [0, False, examine, b"", False, 0, False, "", task, body]
    return [INDEX, NUMBER, 0, [0], spans, [after], False, limit, *rest]


WHOLE: list[Any] = [[b"", None]]
COPY: dict[str, Any] = {
    "copy": "c1",
    "index": INDEX,
    "slice": 0,
    "generation": "",
    "table": "forward",
    "after": b"",
}
CONTRADICTIONS: list[tuple[str, Any]] = [
    # What took slices out of service.
    (READ_PATH, [INDEX, NUMBER, 0, [0], [[b"", None], [b"", None]], [b""], False, 1_000_000]),
    (READ_PATH, read([[b"a", b"z"], [b"b", b"y"]])),
    (READ_PATH, read([[b"m", None], [b"a", b"b"]])),
    (READ_PATH, read([[b"b", b"a"]])),
    (READ_PATH, read([[b"a", b"a"]])),
    (READ_PATH, read(WHOLE, limit=-1)),
    (READ_PATH, read([[b"", None], [b"", None]], examine=True)),
    (READ_PATH, [INDEX, NUMBER, 0, [2], WHOLE, [b""], False, 10]),
    (READ_PATH, [INDEX, NUMBER, 0, [0, 0], WHOLE, [b"", b""], False, 10]),
    (READ_PATH, [INDEX, NUMBER, 0, [0], WHOLE, [], False, 10]),
    (READ_PATH, [INDEX, -7, 0, [0], WHOLE, [b""], False, 10]),
    (READ_PATH, [INDEX, NUMBER, 0, [0], WHOLE, [b""], False, "ten"]),
    (LEASE_PATH, [INDEX, NUMBER, 0, [9], 1_000, False]),
    (LEASE_PATH, [INDEX, NUMBER, 0, [0], -1_000, False]),
    (VERIFY_PATH, ["digest", "one_n-1", 0, NUMBER, 0, "forward", 2, {}, b"no key", 10]),
    (VERIFY_PATH, ["digest", INDEX, 0, NUMBER, 0, "forward", 60, {}, b"", 10]),
    (VERIFY_PATH, ["rows", INDEX, 0, NUMBER, 0, "forward", 2, [4], [], b"", 10, 10]),
    (VERIFY_PATH, ["pin", INDEX, [0], NUMBER, 0, "pages", 0]),
    (VERIFY_PATH, ["pin", INDEX, [0, 5], NUMBER, 0, "v", 10]),
    (VERIFY_PATH, ["built", INDEX, 9, BUILD, 0, "forward", b"", 10]),
    (VERIFY_PATH, ["built", INDEX, 0, BUILD, -1, "forward", b"", 10]),
    (VERIFY_PATH, ["built", INDEX, 0, BUILD, 0, "pages", b"", 10]),
    (LISTS_PATH, {"what": "skipped", "index": INDEX, "slices": [0], "limit": 5, "after": [-1, 0]}),
    (LISTS_PATH, {"what": "skipped", "index": INDEX, "slices": [3], "limit": 5}),
    (LISTS_PATH, {"what": "map", "index": INDEX, "slices": [0], "limit": 5}),
    (COPY_PATH, {**COPY, "table": "meta"}),
    (COPY_PATH, {**COPY, "after": b"x" * 512}),
    (COPY_PATH, {**COPY, "slice": -1}),
]


@pytest.mark.parametrize(("path", "message"), CONTRADICTIONS)
def test_what_cannot_be_meant_so_is_refused(
    node: LiveNode, client: TestClient, path: str, message: Any
) -> None:
    response = client.post(path, content=encode(message), headers=of_the_cluster())
    assert (response.status_code, response.json()["type"]) == (422, "invalid-request"), response.text
    assert "the same release" in response.json()["next_step"]
    assert node.doubts() == {}


def test_text_that_is_no_utf_8_is_an_invalid_request(client: TestClient) -> None:
    body = encode([INDEX, NUMBER, 0, [0], WHOLE, [b""], False, 10]).replace(b"by_c", b"by_\xff")
    assert client.post(READ_PATH, content=body, headers=of_the_cluster()).status_code == 422
    for body in (b'"\xff"', b'{"equals":["\xff"]}', b'{"\xff":1}'):
        response = client.post("/v1/indexes/by_city/scan", content=body)
        assert (response.status_code, response.json()["type"]) == (422, "invalid-request")


@pytest.mark.parametrize("seed", share.seeds(12))
def test_no_message_changes_the_state_of_a_slice(node: LiveNode, seed: int) -> None:
    with InternalFuzz(node, seed) as fuzz:
        fuzz.run(300)
        assert {"read 200", "read 422", "verify 200", "lists 200", "lease 200"} <= set(fuzz.answers)


def test_only_the_credential_of_the_cluster_opens_the_routes_of_nodes(node: LiveNode) -> None:
    tokens = {"reads": ["read"], "rules": ["admin"]}
    right = of_the_cluster()
    kind = right["Content-Type"]
    other = of_the_cluster("ab" * 32)["Authorization"]
    for settings in (load_settings(), load_settings(security={"tokens": tokens})):
        with TestClient(create_app(node.view, settings, CollectorRegistry())) as client:
            for path in (
                READ_PATH,
                LEASE_PATH,
                VERIFY_PATH,
                LISTS_PATH,
                COPY_PATH,
                "/internal/v1/of-a-later-release",
            ):
                for authorization in ("", "Bearer reads", "Bearer rules", other, "Keytide-Cluster "):
                    headers = {"Authorization": authorization, "Content-Type": kind}
                    response = client.post(path, content=b"", headers=headers)
                    assert (response.status_code, response.json()["type"]) == (401, "not-allowed")
                for wrong in ("", "application/json", "text/plain", "application/msgpack; a=b"):
                    headers = {**right, "Content-Type": wrong}
                    response = client.post(path, content=b"", headers=headers)
                    assert response.status_code == 415, (path, wrong)
                page = {**right, "Origin": "http://evil.example"}
                assert client.post(path, content=b"", headers=page).status_code == 403
            body = encode(read(WHOLE))
            assert client.post(READ_PATH, content=body, headers=right).status_code == 200


def test_a_node_that_has_not_read_the_metadata_opens_to_nobody(node: LiveNode) -> None:
    with TestClient(create_app(ServingNode("n9"), load_settings(), CollectorRegistry())) as client:
        for headers in (of_the_cluster(), of_the_cluster("")):
            response = client.post(READ_PATH, content=b"", headers=headers)
            assert (response.status_code, response.json()["type"]) == (503, "starting")


def test_the_credential_is_another_one_every_hour() -> None:
    def credential(secret: str, now: int) -> bytes:
        return headers_of(secret, now)["Authorization"].encode()

    now = 1_000 * PERIOD_MS + 5
    ours = credential(SECRET, now)
    assert ours != credential(SECRET, now + PERIOD_MS)
    hours = [opens(ours, SECRET, now + at * PERIOD_MS) for at in range(-2, 3)]
    assert hours == [False, True, True, True, False]
    assert not opens(ours, "ab" * 32, now)
    assert not opens(credential("", now), "", now)
    assert not opens(b"", SECRET, now)
