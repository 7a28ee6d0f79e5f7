"""The scan endpoint over HTTP: forms of requests and answers, every typed error, abuse, the OpenAPI page, and
two real servers that ask each other."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Self

import httpx
import msgspec
import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from starlette.routing import Route

from deploy.demo.story import STATEMENTS
from indexer.scan.gather.peers import LEASE_PATH, READ_PATH
from indexer.scan.http.openapi import EXAMPLE_INDEX
from indexer.scan.peer.messages import ReadMessage, encoder, read_reply_decoder
from indexer.scan.plan.selection import Shape, slices_of
from indexer.scan.request.request import ScanRequest
from indexer.serve.api import create_app
from keytide.client import Client
from keytide.collation import MISSING
from keytide.errors import InvariantViolationError, KeytideError
from keytide.model.protocol import SPOKEN
from keytide.model.timestamp import Timestamp
from keytide.serving.gate import RequestGate
from keytide.settings.settings import Settings, load_settings
from tests.serving import running
from tests.unit.scan_world import Doc, FakeView, World, of_the_cluster

SCAN = "/v1/indexes/by_city/scan"
COUNT = "/v1/indexes/by_city/count"


def world_of_cities(node_count: int = 1, replicas: int = 0) -> World:
    world = World(
        "CREATE INDEX by_city ON users (city, n) WITH (slices=3)",
        "CREATE INDEX with_name ON users (city) INCLUDE (name) WITH (slices=2, include_missing=true)",
        node_count=node_count,
        replicas=replicas,
    )
    world.create("CREATE INDEX building ON users (a)", state="BUILDING")
    cities = ["Boston", "Aachen", "Bonn", "Zürich"]
    world.commit(
        5,
        {
            "by_city": [Doc([cities[at % 4], at], f"u{at:02}") for at in range(20)],
            "with_name": [
                Doc(["Boston"], "u1", b'{"name":"Ann"}'),
                Doc([None], "u2", b'{"name":2.0}'),
                Doc([MISSING], "u3", b"{}"),
            ],
        },
        offsets={0: 47, 1: 11},
    )
    return world


class Endpoint:
    """A node's application, asked without a server, on an event loop of its own. Started within `with`."""

    def __init__(self, world: World, tokens: dict[str, list[str]] | None = None, **scan: Any) -> None:
        self.world = world
        self.registry = CollectorRegistry()
        self.bugs: list[InvariantViolationError] = []
        configured = load_settings(scan=scan or None, security={"tokens": tokens} if tokens else None)
        self._app = create_app(world.views["n0"], configured, self.registry, self.bugs.append)
        self._lifespan = self._app.router.lifespan_context(self._app)
        self._loop = asyncio.new_event_loop()
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
        self._http = httpx.AsyncClient(base_url="http://127.0.0.1", transport=transport)

    def __enter__(self) -> Self:
        self._loop.run_until_complete(self._lifespan.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._lifespan.__aexit__(None, None, None))
        self.close()

    def close(self) -> None:
        self._loop.run_until_complete(self._http.aclose())
        self._loop.close()

    def routes(self) -> list[Route]:
        return [route for route in self._app.routes if isinstance(route, Route)]

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self._loop.run_until_complete(self._http.request(method, path, **more))

    def post(self, path: str = SCAN, content: bytes | None = None, **body: Any) -> httpx.Response:
        return self.request("POST", path, content=json.dumps(body) if content is None else content)

    def get(self, path: str = SCAN, **query: Any) -> httpx.Response:
        return self.request("GET", path, params=query)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint(world_of_cities(), max_limit=1_000) as made:
        yield made


def problem(response: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    """The problem document of a response."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert document["type"] == kind
    assert document["status"] == status
    assert document["title"]
    assert document["detail"]
    return document


# --- answers ----------------------------------------------------------------------------------------------


def test_the_shape_of_an_answer(endpoint: Endpoint) -> None:
    response = endpoint.post(equals=["Boston"], limit=2)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert set(answer) == {"rows", "snapshot", "timestamp", "session", "page", "staleness_ms"}
    assert answer["rows"] == [{"key": ["Boston", 0], "id": "u00"}, {"key": ["Boston", 4], "id": "u04"}]
    assert answer["snapshot"] == 5
    assert answer["timestamp"] == {"0": {"offset": 47, "epoch": -1}, "1": {"offset": 11, "epoch": -1}}
    assert isinstance(answer["session"], str)
    assert isinstance(answer["page"], str)
    assert 0 <= answer["staleness_ms"] < 60_000
    following = endpoint.post(page=answer["page"]).json()
    assert [row["id"] for row in following["rows"]] == ["u08", "u12"]


def test_columns_missing_parts_and_included_values_as_they_were_written(endpoint: Endpoint) -> None:
    response = endpoint.post("/v1/indexes/with_name/scan")
    assert response.json()["rows"] == [
        {"key": [None], "missing": [0], "id": "u3", "include": {}},
        {"key": [None], "id": "u2", "include": {"name": 2.0}},
        {"key": ["Boston"], "id": "u1", "include": {"name": "Ann"}},
    ]
    assert b'{"name":2.0}' in response.content
    only = endpoint.post("/v1/indexes/with_name/scan", columns=["include"], equals=["Boston"])
    assert only.json()["rows"] == [{"include": {"name": "Ann"}}]
    assert endpoint.post(columns=[], limit=1).json()["rows"] == [{}]
    assert endpoint.post(columns=["id"], limit=1, page=None).json()["rows"] == [{"id": "u01"}]


def test_numbers_come_back_as_they_were_written() -> None:
    numbers = [5, 5.0, -0.0, 1e300, 2**53 + 1, 10**40, -(10**40), 0.1]
    world = World("CREATE INDEX n ON users (a)", node_count=1)
    world.commit(5, {"n": [Doc([number], f"d{at}") for at, number in enumerate(numbers)]})
    with Endpoint(world) as made:
        rows = made.post("/v1/indexes/n/scan").json()["rows"]
        found = {row["id"]: row["key"][0] for row in rows}
        assert [repr(found[f"d{at}"]) for at in range(len(numbers))] == [repr(number) for number in numbers]
        for number, ids in (
            (5, ["d0", "d1"]),
            (10**40, ["d5"]),
            (2**53 + 1, ["d4"]),
            (2**53, []),
            (0, ["d2"]),
        ):
            answer = made.post("/v1/indexes/n/scan", equals=[number]).json()
            assert [row["id"] for row in answer["rows"]] == ids


def test_count(endpoint: Endpoint) -> None:
    answer = endpoint.post(COUNT, equals=["Boston"]).json()
    assert answer["count"] == 5
    assert answer["snapshot"] == 5
    assert set(answer) == {"count", "snapshot", "timestamp", "session", "staleness_ms"}
    assert endpoint.get(COUNT, prefix="Bo").json()["count"] == 10
    problem(endpoint.post(COUNT, limit=5), 422, "invalid-request")


def test_explain(endpoint: Endpoint) -> None:
    story = endpoint.post(equals=["Boston"], explain=True).json()["explain"]
    assert (story["snapshot"], story["waited_for"], story["slices_of_index"]) == (5, [], 3)
    (one,) = story["slices"]
    assert one == {
        "slice": one["slice"], "node": "n0", "newest": 5, "snapshot": 5, "rows_read": 5,
    }  # fmt: skip
    tip = endpoint.post(consistency="tip", explain=True).json()
    assert tip["snapshot"] is None
    assert tip["explain"]["snapshot"] is None
    assert len(tip["explain"]["slices"]) == 3


def test_an_empty_body_asks_for_everything(endpoint: Endpoint) -> None:
    assert len(endpoint.post(content=b"").json()["rows"]) == 20
    assert endpoint.post(COUNT, content=b"").json()["count"] == 20


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ({"equals": "Boston"}, {"equals": ["Boston"]}),
        ({"equals": '"Boston"'}, {"equals": ["Boston"]}),
        ({"equals": '["Boston", 4]'}, {"equals": ["Boston", 4]}),
        ({"equals": ["Boston", "4"]}, {"equals": ["Boston", 4]}),
        ({"equals": "5"}, {"equals": [5]}),
        ({"equals": "null"}, {"equals": [None]}),
        ({"equals": "NaN"}, {"equals": ["NaN"]}),
        ({"equals": "1e999"}, {"equals": ["1e999"]}),
        (
            {"low": "Bonn", "high": "Boston", "inclusion": "neither"},
            {"low": ["Bonn"], "high": ["Boston"], "inclusion": "neither"},
        ),
        ({"prefix": "Bo", "reverse": "true", "limit": "3"}, {"prefix": "Bo", "reverse": True, "limit": 3}),
        ({"prefix": "5"}, {"prefix": "5"}),
        ({"columns": "id"}, {"columns": ["id"]}),
        ({"columns": '["id"]'}, {"columns": ["id"]}),
        ({"consistency": "tip"}, {"consistency": "tip"}),
        ({"at_least": '{"0": 47}'}, {"at_least": {"0": 47}}),
        ({"at_least": '{"0": {"offset": 47, "epoch": 0}}'}, {"at_least": {"0": {"offset": 47}}}),
    ],
)
def test_a_query_string_asks_for_the_same(
    endpoint: Endpoint, query: dict[str, Any], body: dict[str, Any]
) -> None:
    by_hand, posted = endpoint.get(**query), endpoint.post(**body)
    assert by_hand.status_code == posted.status_code == 200, by_hand.text
    assert by_hand.json()["rows"] == posted.json()["rows"]


def test_of_several_forms_that_are_accepted_the_first_is_given(endpoint: Endpoint) -> None:
    json_first = [("Accept", "application/json"), ("accept", "application/x-ndjson")]
    for headers, kind in ((json_first, "application/json"), (json_first[::-1], "application/x-ndjson")):
        assert endpoint.request("POST", SCAN, headers=headers).headers["content-type"] == kind


def test_pages_and_sessions_in_a_query_string(endpoint: Endpoint) -> None:
    first = endpoint.get(limit="7").json()
    second = endpoint.get(page=first["page"], session=first["session"]).json()
    assert [row["id"] for row in second["rows"]] == [row["id"] for row in endpoint.get().json()["rows"][7:14]]


@pytest.mark.parametrize("stretch", [{}, {"equals": ["Boston"]}, {"prefix": "Bo"}, {"spans": [{}]}])
def test_both_bounds_may_always_be_said_to_belong_to_the_range(
    endpoint: Endpoint, stretch: dict[str, Any]
) -> None:
    """It is what holds unless something else is said: who always sends it is not refused."""
    said = endpoint.post(**stretch, inclusion="both").json()["rows"]
    assert said == endpoint.post(**stretch).json()["rows"]
    told = problem(endpoint.post(**stretch, inclusion="low"), 422, "invalid-request")
    assert "`inclusion` is of `low` and `high`" in told["detail"]


# --- errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"{", b"[]", b"null", b'"x"', b"\xff", b"{}x", b'{"equals": "Boston"}', b'{"equals": {}}',
        b'{"limit": 0}', b'{"limit": -1}', b'{"limit": 1.5}', b'{"limit": "5"}', b'{"limit": true}',
        b'{"unknown": 1}', b'{"inclusion": "some"}', b'{"consistency": "latest"}', b'{"columns": ["x"]}',
        b'{"columns": "id"}', b'{"reverse": 1}', b'{"prefix": 5}', b'{"at_least": [1]}',
        b'{"at_least": {"x": 1}}', b'{"at_least": {"0": -1}}', b'{"at_least": {"0": {"offset": -1}}}',
        b'{"at_least": {"0": {"epoch": 1}}}', b'{"at_least": {"0": {"offset": 1, "x": 1}}}',
        b'{"timeout_ms": 0}', b'{"max_staleness_ms": -1}', b'{"equals": ["a"], "low": ["a"]}',
        b'{"prefix": "a", "high": ["a"]}', b'{"equals": [NaN]}', b'{"equals": [1e999]}',
        b'{"equals": [' + b"9" * 5000 + b"]}", b'{"equals": ["\\ud800"]}', b'{"page": 5}', b'{"session": 5}',
        b'{"equals": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}",
        b'{"consistency": "tip", "max_staleness_ms": 1}', b'{"inclusion": "low"}',
        b'{"equals": ["a"], "inclusion": "low"}', b'{"prefix": "a", "inclusion": "neither"}',
        b'{"spans": [{"low": ["a"]}], "inclusion": "high"}',
        b'{"spans": [{"equals": ["a"], "inclusion": "low"}]}',
    ],
)  # fmt: skip
def test_requests_that_are_not_understood(endpoint: Endpoint, body: bytes) -> None:
    problem(endpoint.post(content=body), 422, "invalid-request")


def test_what_is_wrong_is_named(endpoint: Endpoint) -> None:
    document = problem(endpoint.post(content=b'{"limit": "x"}'), 422, "invalid-request")
    assert document["errors"][0]["field"] == "limit"
    assert "limit" in document["detail"]
    assert document["next_step"]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"equals": ["a", 1, "too much"]}, "bad-request"),
        ({"low": [1, 2, 3]}, "bad-request"),
        ({"equals": ["a", 1], "prefix": "x"}, "bad-request"),
        ({"equals": [json.loads("[" * 65 + "]" * 65)]}, "not-indexable"),
        ({"limit": 1_001}, "limit-too-large"),
        ({"limit": 10**30}, "limit-too-large"),
        ({"at_least": {"2": 1}}, "unknown-partition"),
        ({"at_least": {"-1": 1}}, "unknown-partition"),
        ({"page": "nonsense"}, "invalid-token"),
        ({"session": "nonsense"}, "invalid-token"),
        ({"session": "\x00"}, "invalid-token"),
    ],
)
def test_requests_that_cannot_be_answered(endpoint: Endpoint, body: dict[str, Any], kind: str) -> None:
    problem(endpoint.post(**body), 422, kind)


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "x"}, {"limit": "0"}, {"reverse": "maybe"}, {"unknown": "1"}, {"at_least": "x"},
        {"limit": ["1", "2"]}, {"columns": "x"}, {"columns": "[" * 5000}, {"equals": "[" * 20_000},
        {"low": "a", "equals": "a"}, {"at_least": '{"0": 1.5}'},
        {"equals": '["Bonn'}, {"low": "007"}, {"high": "True"}, {"equals": '"Bonn'},
    ],
)  # fmt: skip
def test_query_strings_that_are_not_understood(endpoint: Endpoint, query: dict[str, Any]) -> None:
    problem(endpoint.get(**query), 422, "invalid-request")


def test_indexes_that_cannot_answer(endpoint: Endpoint) -> None:
    for path in ("/v1/indexes/nope/scan", "/v1/indexes/nope/count", "/v1/indexes/no%00pe/scan"):
        document = problem(endpoint.post(path), 404, "unknown-index")
        assert "by_city" in document["detail"]
    response = endpoint.post("/v1/indexes/building/scan")
    document = problem(response, 503, "index-not-ready")
    assert (document["build"], document["state"]) == ("b1", "BUILDING")
    assert "retry-after" not in response.headers  # a build takes longer than that


def test_a_demand_that_is_not_met_in_time(endpoint: Endpoint) -> None:
    began = time.monotonic()
    document = problem(endpoint.post(at_least={"0": 48}, timeout_ms=50), 504, "timestamp-not-reached")
    assert 0.04 < time.monotonic() - began < 5
    assert "offset 48 of partition 0" in document["detail"]
    assert "timeout_ms" in document["next_step"]


def test_gone_and_changed() -> None:
    world = world_of_cities()
    with Endpoint(world) as made:
        page = made.post(limit=3).json()
        world.views["n0"].slices["by_city-1", 1].restart()
        response = made.post(page=page["page"])
        assert problem(response, 410, "snapshot-gone")["next_step"]
        response = made.post(timeout_ms=20)
        problem(response, 503, "index-not-ready")
        assert response.headers["retry-after"] == "1"
        world.roll_back()
        problem(made.post(page=page["page"]), 409, "history-changed")
        problem(made.post(session=page["session"]), 409, "history-changed")


def test_too_large_a_body(endpoint: Endpoint) -> None:
    limit = load_settings().http.max_body_bytes
    problem(endpoint.post(content=b" " * (limit + 1)), 413, "request-too-large")
    assert endpoint.post(content=b" " * (limit - 2) + b"{}").status_code == 200


def test_paths_and_methods_that_are_not_there(endpoint: Endpoint) -> None:
    assert "/docs" in problem(endpoint.get("/v1/nope"), 404, "not-found")["next_step"]
    for path in ("builds", "jobs/j1", "indexes/by_city/map", "statements"):
        told = problem(endpoint.get(f"/v1/{path}"), 404, "not-found")
        assert "ask the coordinator" in told["next_step"]
    problem(endpoint.post("/v1/indexes//scan"), 404, "not-found")
    problem(endpoint.post("/v1/indexes/a/b/scan"), 404, "not-found")
    problem(endpoint.request("DELETE", SCAN), 405, "method-not-allowed")


def test_a_bug_is_500_and_its_story_is_in_the_log_and_ends_the_node(caplog: pytest.LogCaptureFixture) -> None:
    world = world_of_cities()
    world.views["n0"].slices["by_city-1", 1].snapshots[5].timestamp = Timestamp.of({0: 46, 1: 11})
    with Endpoint(world) as made:
        document = problem(made.post(), 500, "invariant-violated")
        assert "46" not in document["detail"]
        assert "snapshot 5 has several timestamps" in caplog.text
        problem(made.get(), 500, "invariant-violated")
        assert [error.name for error in made.bugs] == ["Untorn", "Untorn"]
        world.views["n0"].published = None  # type: ignore[assignment,method-assign]
        problem(made.post(), 500, "internal-error")
        problem(made.get(), 500, "internal-error")
        assert len(made.bugs) == 2, "what is no broken invariant does not end the node"
        assert made.get("/healthz").status_code == 200


def test_bugs_before_the_framework_are_answered_and_end_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the gate, say."""

    def broken(*_: object) -> NoReturn:
        raise InvariantViolationError("Gate", "who asks has no name")

    monkeypatch.setattr(RequestGate, "_pass", broken)
    with Endpoint(world_of_cities()) as made:
        problem(made.get("/v1/indexes"), 500, "invariant-violated")
        problem(made.post(), 500, "invariant-violated")
        assert [error.name for error in made.bugs] == ["Gate", "Gate"]


def test_nodes_that_ask_nonsense(endpoint: Endpoint) -> None:
    short = ReadMessage("by_city-1", 5, 0, [0], [], [b""], False, 5)
    for content in (b"", b"nonsense", encoder.encode([1, 2]), encoder.encode(short)[:-9], b"\x81" * 200_000):
        for path in (READ_PATH, LEASE_PATH):
            response = endpoint.request("POST", path, content=content, headers=of_the_cluster())
            problem(response, 422, "invalid-request")
    whole = endpoint.request("POST", READ_PATH, content=encoder.encode(short), headers=of_the_cluster())
    assert read_reply_decoder.decode(whole.content).slices[0].number == 5


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
MEMBERS = sorted(field.name for field in msgspec.structs.fields(ScanRequest) if field.name != "timeout_ms")


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(MEMBERS) | st.text(max_size=3),
        json_values
        | st.lists(json_values, max_size=3)
        | st.dictionaries(st.integers(-1, 3).map(str), st.integers(-1, 50), max_size=2),
        max_size=3,
    )
)
def test_no_request_is_a_server_error(endpoint: Endpoint, body: dict[str, Any]) -> None:
    content = json.dumps({"timeout_ms": 1, **body}).encode()
    for path in (SCAN, COUNT):
        response = endpoint.post(path, content=content)
        assert response.status_code in (200, 404, 422, 504), (content, response.text)
    query = {name: value if isinstance(value, str) else json.dumps(value) for name, value in body.items()}
    response = endpoint.get(**{"timeout_ms": "1", **query})
    assert response.status_code in (200, 404, 422, 504), (query, response.text)


# --- the rest of the node's pages -------------------------------------------------------------------------


def test_health_and_metrics(endpoint: Endpoint) -> None:
    assert endpoint.get("/healthz").json() == {"status": "ok", "node": "n0"}
    known = {"ready": True, "node": "n0", "roles": ["index", "scan"], "protocol": SPOKEN}
    ready = {**known, "status": "ok", "reasons": []}
    assert endpoint.get("/readyz").json() == ready
    names = {one["name"]: one["state"] for one in endpoint.get("/v1/indexes").json()}
    assert names == {"by_city": "READY", "with_name": "READY", "building": "BUILDING"}
    before = endpoint.registry.get_sample_value("keytide_scan_rows_total") or 0
    endpoint.post(limit=4)
    endpoint.post(consistency="tip")
    endpoint.post("/v1/indexes/nope/scan")
    assert endpoint.registry.get_sample_value("keytide_scan_rows_total") == before + 24
    text = endpoint.get("/metrics").text
    assert 'keytide_scan_seconds_count{consistency="tip",index="by_city"}' in text
    assert 'keytide_scan_errors_total{type="unknown-index"}' in text


def test_what_other_nodes_ask_for_in_vain_is_counted(endpoint: Endpoint) -> None:
    def asked_for(number: int) -> float:
        name = "keytide_scan_slices_behind_total"
        before = endpoint.registry.get_sample_value(name) or 0.0
        content = encoder.encode(ReadMessage("by_city-1", number, 0, [0], [], [b""], False, 3))
        endpoint.request("POST", READ_PATH, content=content, headers=of_the_cluster())
        return (endpoint.registry.get_sample_value(name) or 0.0) - before

    assert (asked_for(5), asked_for(6)) == (0, 1)


def test_a_node_that_knows_no_cluster_yet() -> None:
    world = world_of_cities()
    world.catalog.apply("cluster", None, world.catalog.offset)
    starting = Endpoint(world)
    problem(starting.post(), 503, "starting")
    starting.close()
    with Endpoint(world) as made:
        assert made.get("/readyz").status_code == 503
        problem(made.post(), 503, "index-not-ready")


def test_the_openapi_page_shows_what_is_checked(endpoint: Endpoint) -> None:
    page = endpoint.get("/openapi.json").json()
    paths = page["paths"]
    assert set(paths) >= {"/v1/indexes/{name}/scan", "/v1/indexes/{name}/count"}
    assert not any(path.startswith("/internal") for path in paths)
    scan = paths["/v1/indexes/{name}/scan"]
    reference = scan["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = page["components"]["schemas"][reference.rpartition("/")[2]]
    assert set(MEMBERS) | {"timeout_ms"} == set(schema["properties"])
    assert schema["additionalProperties"] is False
    parameters = {one["name"] for one in scan["get"]["parameters"]}
    assert parameters == {"name", *schema["properties"]}
    for text in json.dumps(page).split('"$ref": "')[1:]:
        name = text.split('"')[0].rpartition("/")[2]
        assert name in page["components"]["schemas"]
    assert endpoint.get("/docs").status_code == 200


def test_every_example_of_the_openapi_page_works_when_it_is_pressed() -> None:
    statement = STATEMENTS[EXAMPLE_INDEX].replace("ON flights", "ON users").replace(", defer_build=true", "")
    world = World(statement, node_count=1)
    include = b'{"flight":"UA1","origin":"EWR","arrival_delay":-3}'
    flights = [
        Doc([destination, f"2013-01-01T1{at}:00"], f"f{destination}{at}", include)
        for destination in ("ATL", "BOS", "LAX", "ORD", "SFO")
        for at in range(9)
    ]
    world.commit(5, {EXAMPLE_INDEX: flights})
    pressed = 0
    with Endpoint(world) as made:
        page = made.get("/openapi.json").json()
        for path, operations in page["paths"].items():
            if "{name}" not in path or path.endswith("/tail"):  # a tail never ends
                continue
            for method, operation in operations.items():
                parameters = {one["name"]: one for one in operation["parameters"]}
                assert parameters["name"]["example"] == EXAMPLE_INDEX
                url = path.replace("{name}", EXAMPLE_INDEX)
                content = operation.get("requestBody", {}).get("content", {})
                for shown in content.get("application/json", {}).get("examples", {}).values():
                    answer = made.request(method.upper(), url, content=json.dumps(shown["value"]))
                    assert answer.status_code == 200, (url, shown, answer.text)
                    assert answer.json().get("rows") != [], shown
                    pressed += 1
                if method == "get":
                    query = {name: one["example"] for name, one in parameters.items() if "example" in one}
                    del query["name"]
                    assert query, f"{url} shows nothing to press"
                    answer = made.get(url, **query)
                    assert answer.status_code == 200, (url, query, answer.text)
                    pressed += 1
    assert pressed >= 15


def test_snapshots_are_held_and_given_back_over_http(endpoint: Endpoint) -> None:
    path = "/v1/indexes/by_city/snapshots"
    held = endpoint.post(path, lease_s=30).json()
    assert held.keys() == {
        "at", "snapshot", "timestamp", "session", "staleness_ms", "slices", "expires_in_s",
    }  # fmt: skip
    assert (held["snapshot"], held["slices"], held["expires_in_s"]) == (5, 3, 30)
    answer = endpoint.get(at=held["at"], equals="Bonn").json()
    assert len(answer["rows"]) == 5
    assert endpoint.post(COUNT, at=held["at"]).json()["count"] == 20
    given = endpoint.request("DELETE", path, params={"at": held["at"]})
    assert (given.status_code, given.content) == (204, b"")
    gone = problem(endpoint.get(at=held["at"]), 410, "snapshot-gone")
    assert gone["next_step"]
    problem(endpoint.request("DELETE", path), 422, "invalid-request")
    problem(endpoint.request("DELETE", path, params={"at": "x"}), 422, "invalid-token")
    problem(endpoint.post(path, lease_s=10**9), 422, "lease-too-long")
    problem(endpoint.post(path, lease_s=0), 422, "invalid-request")
    problem(endpoint.post("/v1/indexes/nope/snapshots"), 404, "unknown-index")
    problem(endpoint.post("/v1/indexes/building/snapshots"), 503, "index-not-ready")


def test_selections_by_hand(endpoint: Endpoint) -> None:
    everything = [row["id"] for row in endpoint.get().json()["rows"]]
    assert len(everything) == 20
    spans = json.dumps([{"equals": ["Bonn"]}, {"equals": ["Aachen"]}, {"prefix": "B"}])
    found = endpoint.get(spans=spans, columns="id", offset="1", limit="6").json()
    assert [row["id"] for row in found["rows"]] == everything[1:7]
    keys = endpoint.get("/v1/indexes/with_name/scan", distinct="true").json()["rows"]
    assert keys == [{"key": [None], "missing": [0]}, {"key": [None]}, {"key": ["Boston"]}]
    assert endpoint.get(COUNT, spans=spans).json()["count"] == 15
    parts = [endpoint.get(slices=str(number)).json()["rows"] for number in range(3)]
    assert sorted(row["id"] for rows in parts for row in rows) == sorted(everything)
    problem(endpoint.get(slices="3"), 422, "unknown-slice")
    problem(endpoint.get(offset="1000001"), 422, "offset-too-large")
    problem(endpoint.get(distinct="true", columns="id"), 422, "invalid-request")


# --- tokens -----------------------------------------------------------------------------------------------

OPEN_PATHS = {"/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"}


def test_no_way_to_entries_goes_past_the_tokens() -> None:
    with Endpoint(world_of_cities(), tokens={"reader": ["read"], "operator": ["admin"]}) as guarded:
        closed = [(route.path, method) for route in guarded.routes() for method in route.methods or ()]
        assert {(SCAN.replace("by_city", "{name}"), "POST"), (READ_PATH, "POST"), (LEASE_PATH, "POST")} <= {
            *closed
        }
        for path, method in closed:
            refusal = guarded.request(method, path.replace("{name}", "by_city"))
            if path == "/docs/{name}":  # its own files only
                problem(refusal, 404, "not-found")
                continue
            if path in OPEN_PATHS:
                assert refusal.status_code == 200, path
                continue
            assert problem(refusal, 401, "not-allowed")["next_step"]
            assert refusal.headers["www-authenticate"] == "Bearer"
            for token in ("reader", "operator"):
                headers = {"Authorization": f"Bearer {token}"}
                endless = {"params": {"events": 1}} if path.endswith("/tail") else {}
                answer = guarded.request(
                    method, path.replace("{name}", "by_city"), headers=headers, **endless
                )
                assert (answer.status_code == 401) == path.startswith("/internal/")
        answer = guarded.request("POST", SCAN, headers={"Authorization": "Bearer reader"})
        assert len(answer.json()["rows"]) == 20


@pytest.mark.parametrize("path", [SCAN, COUNT, "/v1/indexes"])
def test_without_tokens_a_request_to_a_public_name_is_refused(endpoint: Endpoint, path: str) -> None:
    method = "GET" if path == "/v1/indexes" else "POST"
    answer = endpoint.request(method, path, headers={"Host": "evil.example:8093"})
    assert problem(answer, 403, "not-allowed")["next_step"]
    assert endpoint.request(method, path, headers={"Host": "localhost:8093"}).status_code == 200


def test_nodes_send_their_token_to_each_other() -> None:
    world = world_of_cities(node_count=2)
    first, second = world.views.values()
    ours = load_settings(security={"tokens": {"reader": ["read"], "operator": ["admin"]}})
    theirs = load_settings(security={"tokens": {"stranger": ["read"]}})
    with serving(second, ours) as url, serving(first, ours) as one, serving(first, theirs) as stranger:
        first.urls = {"n1": url}
        with Client(one, token="reader") as client:
            assert len(list(client.scan("by_city", page_size=3))) == 20
        with Client(one) as client, pytest.raises(KeytideError) as caught:
            client.page("by_city")
        assert (caught.value.problem_type, caught.value.status) == ("not-allowed", 401)
        with Client(stranger, token="stranger", retries=0) as client:
            assert len(client.page("by_city").rows) == 20, "tokens are no matter between nodes"


# --- real servers -----------------------------------------------------------------------------------------


@contextmanager
def serving(view: FakeView, configured: Settings) -> Iterator[str]:
    """The node behind a real server on a port of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        create_app(view, configured, CollectorRegistry(), roles=configured.indexer.roles),
        loop="uvloop",
        log_level="warning",
        access_log=False,
    )
    with running(uvicorn.Server(config), listener) as port:
        yield f"http://127.0.0.1:{port}"


def test_two_servers_gather_from_each_other() -> None:
    world = world_of_cities(node_count=2)
    first, second = world.views.values()
    with serving(first, load_settings()) as one, serving(second, load_settings()) as two:
        first.urls, second.urls = {"n1": two}, {"n0": one}
        with Client(one) as client:
            rows = [(row.key[0], row.id) for row in client.scan("by_city", page_size=3)]
            assert len(rows) == 20
            assert rows == sorted(rows)
            assert client.count("by_city").count == 20
        with Client(two) as client:
            page = client.page("by_city", limit=3, explain=True)
            assert page.explain is not None
            assert {one["node"] for one in page.explain["slices"]} == {"n0", "n1"}
            # What the other node says is passed on under its own name.
            world.views["n0"].slices["by_city-1", 0].restart()
            with pytest.raises(KeytideError, match="slice 0") as caught:
                client.page("by_city", page=page.page)
            assert caught.value.problem_type == "snapshot-gone"
        first.urls = {}
        with Client(one, retries=0) as client, pytest.raises(KeytideError, match="n1") as caught:
            client.page("by_city")
        assert caught.value.problem_type == "node-unavailable"


def test_a_node_that_does_not_answer_and_one_that_talks_nonsense() -> None:
    world = world_of_cities(node_count=2)
    first = world.views["n0"]
    silent = socket.create_server(("127.0.0.1", 0))
    with serving(first, load_settings()) as url, Client(url, retries=0) as client, silent:
        first.urls = {"n1": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        with pytest.raises(KeytideError) as caught:
            client.page("by_city", timeout_ms=200)
        assert (caught.value.problem_type, caught.value.status) == ("node-unavailable", 504)
        first.urls = {"n1": url + "/v1/indexes"}
        with pytest.raises(KeytideError) as caught:
            client.page("by_city")
        assert (caught.value.problem_type, caught.value.status) == ("node-unavailable", 503)
        silent.close()
        first.urls = {"n1": "http://127.0.0.1:1"}  # (nobody)
        with pytest.raises(KeytideError, match="cannot be asked"):
            client.page("by_city")
        # This node alone still answers what it can.
        assert client.page("by_city", equals=_lying_on("n0", world)).rows == []


def _lying_on(node: str, world: World) -> list[str]:
    """A leading key part, of no document, whose slice lies on a node."""
    record = world.index("by_city")
    shape = Shape.of(record.definition)
    names = ([f"nobody-{at}"] for at in range(1_000))
    return next(
        name for name in names if record.placement[slices_of(ScanRequest(equals=name), shape)[0]] == [node]
    )


def test_a_reader_that_hangs_up_ends_its_wait() -> None:
    world = world_of_cities()
    view = world.views["n0"]
    with serving(view, load_settings()) as url:
        port = int(url.rpartition(":")[2])
        body = msgspec.json.encode({"at_least": {"0": 1_000}, "timeout_ms": 100_000})
        with socket.create_connection(("127.0.0.1", port)) as connection:
            head = f"POST {SCAN} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            _until(lambda: view.looks >= 2)
        looks = view.looks

        def quiet() -> bool:
            nonlocal looks
            before, looks = looks, view.looks
            world.tell()  # wakes whoever still waits, who then looks
            time.sleep(0.01)
            return before == looks == view.looks

        _until(quiet)


def _until(condition: Any) -> None:
    for _ in range(2_000):
        if condition():
            return
        time.sleep(0.002)
    raise AssertionError("it never came")
