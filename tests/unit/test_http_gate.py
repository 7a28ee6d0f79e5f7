"""What every request passes before a server reads any of it: whose page asks, who asks, what kind of body,
how much of it. On the gate alone, and on the coordinator's and the node's applications."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec
import pytest
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry
from starlette.requests import Request

from coordinator.http.api import create_app as coordinator_app
from coordinator.process.service import CoordinatorService
from indexer.serve.api import create_app as node_app
from keytide.http.node_protocol import headers_of
from keytide.process.clock import wall_ms
from keytide.serving.gate import Message, Need, RequestGate, body_of, client_of, is_of_host
from keytide.settings.settings import Settings, load_settings
from tests.browser.scene import busy_day
from tests.unit.test_api import world_of_cities

TOKENS = {"tokens": {"reads": ["read"], "rules": ["admin"]}}
EVIL = "http://evil.example"
HOST = "127.0.0.1:8091"
SIX = "[::1]:8091"
SECRET = "5e" * 32


class Asked:
    """One request to a gate whose application answers 200 with the body that it got; counts what was read."""

    def __init__(
        self,
        method: str = "POST",
        path: str = "/v1/x",
        headers: Mapping[str, str] | None = None,
        pieces: Iterable[bytes] = (),
        settings: Settings | None = None,
        gone: bool = False,
    ) -> None:
        self.read = 0
        self.largest = 0
        self.status = 0
        self.answer = b""
        self.refused: list[str] = []
        self.seen: dict[bytes, bytes] = {}
        self._pieces = iter(pieces)
        self._gone = gone
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "client": ("192.0.2.7", 5),
            "headers": [
                (name.lower().encode(), value.encode())
                for name, value in ({"Host": HOST} | dict(headers or {})).items()
            ],
        }
        gate = RequestGate(
            self._app, settings or load_settings(), self._needs, lambda: SECRET, self.refused.append
        )
        asyncio.run(gate(scope, self._receive, self._send))

    @staticmethod
    def _needs(method: str, path: str) -> Need:
        if path.startswith("/internal/"):
            return "cluster"
        return "admin" if path.startswith("/v1/") else None

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen = dict(scope["headers"])
        message = await receive() if scope["method"] == "POST" else {"body": b""}
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": message.get("body", b"")})

    async def _receive(self) -> Message:
        piece = next(self._pieces, None)
        if piece is None and self._gone:
            return {"type": "http.disconnect"}
        self.read += len(piece or b"")
        return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.answer += message["body"]


CHUNKED = {"Transfer-Encoding": "chunked", "Content-Type": "application/json"}
MIB = 1 << 20


def test_a_token_is_one_client_however_it_is_written_and_an_address_is_one_where_there_are_none() -> None:
    def client(*values: bytes, tokens: bool = True) -> str:
        headers = [(b"host", b"x"), *((b"authorization", value) for value in values)]
        return client_of({"headers": headers, "client": ("192.0.2.7", 5)}, tokens=tokens)

    ways = [(b"Bearer reads",), (b"bearer  reads",), (b"Basic x", b"BEARER reads ")]
    assert len({client(*way) for way in ways}) == 1
    assert client(b"Bearer reads") != client(b"Bearer rules")
    assert client(b"Bearer reads", tokens=False) == client(tokens=False) == "192.0.2.7"


def test_nothing_of_a_body_is_read_without_a_token() -> None:
    settings = load_settings(security=TOKENS)
    for headers, status in (
        ({}, 401),
        ({"Authorization": "Bearer x"}, 401),
        ({"Authorization": "Bearer reads"}, 403),
        ({"Authorization": "Bearer rules"}, 413),
    ):
        asked = Asked(
            headers=CHUNKED | headers, pieces=(b"x" * 65_536 for _ in range(5_000)), settings=settings
        )
        assert asked.status == status
        assert asked.read <= (MIB + 65_536 if status == 413 else 0)
        assert msgspec.json.decode(asked.answer)["next_step"]


@pytest.mark.parametrize("told", [True, False])
def test_a_body_is_limited_before_anything_parses_it(told: bool) -> None:
    size = 300 * MIB
    length = {"Content-Length": str(size), "Content-Type": "application/json"}
    asked = Asked(headers=length if told else CHUNKED, pieces=(b"x" * 65_536 for _ in range(size >> 16)))
    assert (asked.status, asked.refused) == (413, ["request-too-large"])
    assert asked.read <= (0 if told else MIB + 65_536)


def test_a_body_of_the_largest_size_comes_as_a_whole() -> None:
    asked = Asked(headers=CHUNKED, pieces=[b"a" * (MIB - 1), b"b"])
    assert (asked.status, len(asked.answer)) == (200, MIB)
    assert Asked(headers=CHUNKED, pieces=[b"a" * MIB, b"b"]).status == 413
    assert Asked(headers={"Content-Length": "nine"}).status == 413


@pytest.mark.parametrize("body", [b"{}", b"a" * MIB])
def test_a_body_that_was_read_is_there_at_once_and_then_what_comes_behind_it(body: bytes) -> None:
    found: list[bytes | str] = []

    class Application(Asked):
        async def _app(self, scope: Any, receive: Any, send: Any) -> None:
            request = Request(scope, receive)
            found.extend([await body_of(request), await body_of(request), await request.body()])
            self._gone = True
            found.append((await receive())["type"])
            await super()._app({**scope, "method": "GET"}, receive, send)

    length = {"Content-Length": str(len(body)), "Content-Type": "application/json"}
    assert Application(headers=length, pieces=[body]).status == 200
    assert found == [body, body, body, "http.disconnect"]


@pytest.mark.parametrize(
    ("path", "headers", "limit"),
    [
        ("/v1/x", {"Content-Type": "application/json"}, "max_body_bytes"),
        ("/internal/x", headers_of(SECRET, wall_ms()), "max_message_bytes"),
    ],
)
def test_the_limit_that_is_named_is_the_one_that_was_exceeded(
    path: str, headers: Mapping[str, str], limit: str
) -> None:
    settings = load_settings(http={"max_body_bytes": 10, "max_message_bytes": 20})
    most = getattr(settings.http, limit)
    for told in ({"Content-Length": str(most + 1)}, {"Transfer-Encoding": "chunked"}):
        asked = Asked(path=path, headers={**headers, **told}, pieces=[b"x" * (most + 1)], settings=settings)
        assert asked.status == 413
        refused = msgspec.json.decode(asked.answer)
        assert refused["detail"] == f"the request is larger than {most} bytes"
        assert [one for one in ("max_body_bytes", "max_message_bytes") if one in refused["next_step"]] == [
            limit
        ]


def test_a_client_that_goes_away_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    asked = Asked(headers=CHUNKED, pieces=[b"{", b"}"], gone=True)
    assert (asked.status, asked.answer) == (0, b"")
    assert [record.getMessage() for record in caplog.records if record.name == "keytide.serving.gate"] == [
        "192.0.2.7 went away in the middle of its POST /v1/x"
    ]


@pytest.mark.parametrize(
    ("headers", "foreign"),
    [
        ({}, False),
        ({"Origin": f"http://{HOST}"}, False),
        ({"Origin": f"https://{HOST}"}, False),
        ({"Origin": f"http://{HOST}", "Sec-Fetch-Site": "same-origin"}, False),
        ({"Sec-Fetch-Site": "same-origin"}, False),
        ({"Sec-Fetch-Site": "none"}, False),
        ({"Origin": EVIL}, True),
        ({"Origin": "null"}, True),
        ({"Origin": ""}, True),
        ({"Origin": "http://127.0.0.1:3000"}, True),
        ({"Origin": "http://127.0.0.1"}, True),
        ({"Origin": f"http://{HOST}.evil.example"}, True),
        ({"Origin": f"file://{HOST}"}, True),
        ({"Sec-Fetch-Site": "cross-site"}, True),
        ({"Origin": f"http://{HOST}", "Sec-Fetch-Site": "cross-site"}, True),
        ({"Origin": "https://proxied.example"}, False),
        ({"Origin": "https://proxied.example", "Sec-Fetch-Site": "cross-site"}, True),
    ],
)
def test_foreign_pages_may_only_read(headers: dict[str, str], foreign: bool) -> None:
    proxied = {"origins": ["https://proxied.example"]}
    for security in (proxied, proxied | TOKENS):
        settings = load_settings(security=security)
        with_token = headers | {"Authorization": "Bearer rules"}
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            asked = Asked(method, headers=with_token, settings=settings)
            assert asked.status == (403 if foreign else 200), method
            assert asked.refused == (["foreign-origin"] if foreign else [])
        for method in ("GET", "HEAD"):
            assert Asked(method, headers=with_token, settings=settings).status == 200


def test_an_origin_is_compared_with_the_host_that_the_browser_named() -> None:
    assert is_of_host("http://k.example", "k.example")
    assert is_of_host("http://k.example", "k.example:80")
    assert is_of_host("https://k.example:443", "k.example")
    assert is_of_host(f"http://{SIX}", SIX)
    assert not is_of_host("http://k.example:8080", "k.example")
    assert not is_of_host("https://k.example", "k.example:80")
    assert not is_of_host(f"http://{EVIL[:0]}", "")


@pytest.mark.parametrize(
    ("kind", "origin", "status"),
    [
        (None, "", 200),
        ("application/json", "", 200),
        ("Application/JSON; charset=utf-8", "", 200),
        ("application/json", f"http://{HOST}", 200),
        ("application/x-www-form-urlencoded", "", 200),
        ("application/x-www-form-urlencoded", f"http://{HOST}", 415),
        ("text/plain", "", 415),
        ("multipart/form-data; boundary=x", "", 415),
        ("application/msgpack", "", 415),
    ],
)
def test_a_body_is_json_by_its_type(kind: str | None, origin: str, status: int) -> None:
    headers = {"Content-Length": "2"}
    headers |= {"Content-Type": kind} if kind else {}
    headers |= {"Origin": origin} if origin else {}
    asked = Asked(headers=headers, pieces=[b"{}"])
    assert asked.status == status
    if status == 200:
        assert asked.seen[b"content-type"].lower().startswith(b"application/json")
    bare = {name: value for name, value in headers.items() if name != "Content-Length"}
    assert Asked(headers=bare).status == 200, "no body, no type"


# --- the applications -------------------------------------------------------------------------------------


def coordinator(**security: Any) -> TestClient:
    scene = busy_day(security=security)
    return TestClient(
        coordinator_app(cast(CoordinatorService, scene), "http://c.example"), base_url=f"http://{HOST}"
    )


def node(**security: Any) -> TestClient:
    made = node_app(world_of_cities().views["n0"], load_settings(security=security), CollectorRegistry())
    return TestClient(made, base_url=f"http://{HOST}")


def test_broken_json_without_a_token_is_401_on_every_server() -> None:
    for client, path in (
        (coordinator(**TOKENS), "/v1/statements"),
        (coordinator(**TOKENS), "/v1/builds"),
        (node(**TOKENS), "/v1/indexes/by_city/scan"),
        (node(**TOKENS), "/v1/query"),
        (node(**TOKENS), "/internal/v1/read"),
    ):
        with client:
            response = client.post(path, content=b"{broken")
            assert (response.status_code, response.json()["type"]) == (401, "not-allowed"), path


def test_every_route_that_changes_something_refuses_a_foreign_page() -> None:
    for client in (coordinator(), node()):
        with client:
            routes = [route for route in client.app.routes if hasattr(route, "methods")]  # type: ignore[attr-defined]
            asked = 0
            for route in routes:
                for method in route.methods - {"GET", "HEAD"}:
                    path = route.path.replace("{", "").replace("}", "")
                    response = client.request(method, path, headers={"Origin": EVIL})
                    assert (response.status_code, response.json()["type"]) == (403, "foreign-origin"), path
                    asked += 1
            assert asked > 5


def test_every_route_below_v1_needs_a_token_and_changes_need_admin() -> None:
    with coordinator(**TOKENS) as client:
        for route in [one for one in client.app.routes if hasattr(one, "methods")]:  # type: ignore[attr-defined]
            path = route.path.replace("{", "").replace("}", "")
            for method in route.methods - {"HEAD"}:
                if not path.startswith("/v1/"):
                    assert method == "GET", path
                    continue
                assert client.request(method, path).status_code == 401, path
                reader = client.request(method, path, headers={"Authorization": "Bearer reads"})
                assert (reader.status_code == 403) == (method != "GET"), path


def test_a_method_that_a_route_does_not_take_has_a_type_of_its_own() -> None:
    for client in (coordinator(), node()):
        with client:
            response = client.put("/v1/indexes", content=b"{}", headers={"Content-Type": "application/json"})
            assert (response.status_code, response.json()["type"]) == (405, "method-not-allowed")


@pytest.mark.parametrize("body", [b'"\xff"', b'{"statement": "\xff"}'])
def test_a_body_that_is_no_text_has_the_type_of_its_status(body: bytes) -> None:
    """The type was made of the framework's words, and a word that programs match on is none of those."""
    with coordinator() as client:
        response = client.post("/v1/statements", content=body, headers={"Content-Type": "application/json"})
        assert (response.status_code, response.json()["type"]) == (400, "bad-request")


def test_what_curl_sends_is_a_statement() -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    body = b'{"statement": "DROP INDEX no_such_index"}'
    with coordinator() as client:
        response = client.post("/v1/statements", content=body, headers=form)
        assert response.json()["type"] == "index-not-found", response.text
        page = client.post("/v1/statements", content=body, headers=form | {"Origin": f"http://{HOST}"})
        assert page.status_code == 415
    with node() as client:
        response = client.post("/v1/indexes/by_city/scan", content=b"{}", headers=form)
        assert response.status_code == 200


def test_the_page_of_routes_needs_nothing_from_elsewhere() -> None:
    for client in (coordinator(**TOKENS), node(**TOKENS)):
        with client:
            page = client.get("/docs").text
            named = re.findall(r"(?:src|href)=[\"']([^\"']+)|url: '([^']+)'", page)
            addresses = [address for both in named for address in both if address]
            assert len(addresses) == 4
            for address in addresses:
                assert address.startswith("/"), address
                assert client.get(address).status_code == 200, address
            assert client.get("/docs/core.py").status_code == 404
            assert client.get("/docs/..%2Fcore.py").status_code == 404
