"""The OpenAPI page of a node, held against the node: every answer has a status, a media type and members
that the page shows; what is asked wrongly (types, names, limits, tokens) is refused with what to do. By
schemathesis from the page, and by hand for what it does not think of. Nothing is a server error."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from deploy.demo.story import STATEMENTS
from indexer.scan.local import reader as local
from indexer.scan.stream.arrow import MEDIA_TYPE as ARROW
from indexer.scan.stream.ndjson import MEDIA_TYPE as NDJSON
from keytide.catalog.records import ClusterRecord
from keytide.model import health
from keytide.process import clock
from keytide.settings.settings import load_settings
from tests.browser.scene import busy_day, served
from tests.unit import scan_world
from tests.unit.test_api import Endpoint, serving, world_of_cities

CONFORMANCE = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
SHORT: dict[str, Any] = {
    "default_timeout_ms": 20,
    "max_timeout_ms": 50,
    "max_limit": 100,
    "max_leases": 10_000,
}
PATIENT = {**SHORT, "default_timeout_ms": 10_000, "max_timeout_ms": 20_000}
"""For answers that do not depend on how busy the machine is."""
RETRYABLE = {
    "timestamp-not-reached", "index-not-ready", "count-timeout", "aggregate-timeout", "query-timeout",
    "too-many-tails", "too-many-streams",
}  # fmt: skip
INDEXES = ["by_city", "with_name", "building", "no such index", "%2e%2e"]
FORMS = [None, "application/json", NDJSON, ARROW, f"text/html, {NDJSON};q=0.5", "nonsense", ""]
EXAMPLES = 15


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A running node with short waits."""
    with serving(world_of_cities().views["n0"], load_settings(scan=SHORT)) as where:
        yield where


def check(case: schemathesis.Case[Any]) -> int:
    """Ask; the status of the answer."""
    answer = case.call()
    told = f"{case.method} {case.path} {case.query} {case.body!r}: {answer.status_code} {answer.text[:400]}"
    if answer.status_code >= 300:
        assert answer.headers["content-type"][0] == "application/problem+json", told
        check_problem(answer.status_code, json.loads(answer.text), told)
    case.validate_response(answer, checks=CONFORMANCE)
    return answer.status_code


def check_problem(status: int, problem: dict[str, Any], told: str) -> None:
    assert status == problem.get("status"), told
    assert status < 500 or (status in (503, 504) and problem["type"] in RETRYABLE), told
    assert problem["detail"], told
    assert problem["title"], told
    assert problem.get("next_step"), told


def statuses_of(operation: Any, mode: GenerationMode) -> set[int]:
    """Ask an operation for whatever fits its schemas, or does not quite; the statuses of the answers."""
    statuses: set[int] = set()

    @seed(16)
    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=mode), st.sampled_from(INDEXES), st.sampled_from(FORMS))
    def ask(case: schemathesis.Case[Any], index: str, form: str | None) -> None:
        if "name" in case.path_parameters:
            case.path_parameters["name"] = index
        if case.path.endswith("/tail"):
            case.query["events"] = "1"  # or it would not end
        if form is not None:
            case.headers["Accept"] = form
        statuses.add(check(case))

    try:
        ask()
    except Unsatisfiable:  # nothing about it can be wrong: it takes no parameters
        assert mode is GenerationMode.NEGATIVE
    return statuses


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_answer_is_one_that_the_page_shows(url: str, mode: GenerationMode) -> None:
    tried: dict[str, set[int]] = {}
    for found in schemathesis.openapi.from_url(f"{url}/openapi.json").get_all_operations():
        assert isinstance(found, Ok), "the page has a schema that is none"
        operation = found.ok()
        tried[f"{operation.method.upper()} {operation.path}"] = statuses_of(operation, mode)
    assert len(tried) >= 14
    if mode is GenerationMode.NEGATIVE:
        assert sum(bool(statuses & {404, 422}) for statuses in tried.values()) >= 11, tried
    else:
        assert sum(bool(statuses & {200, 204}) for statuses in tried.values()) >= 6, tried


# --- every member of every answer -------------------------------------------------------------------------

SELECT = "SELECT id, n FROM users WHERE city = 'Boston'"
ASKED: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/v1/indexes/with_name/scan", {"explain": True, "limit": 2}),
    ("POST", "/v1/indexes/by_city/scan", {"distinct": True, "limit": 3}),
    ("POST", "/v1/indexes/by_city/scan", {"consistency": "tip", "columns": ["id"], "explain": True}),
    ("POST", "/v1/indexes/by_city/count", {"explain": True, "distinct": True}),
    ("POST", "/v1/indexes/with_name/aggregate", {"functions": ["count", "sum(name)"], "group_by": ["city"]}),
    ("POST", "/v1/indexes/by_city/aggregate", {"functions": ["avg(n)"], "explain": True}),
    ("POST", "/v1/indexes/by_city/snapshots", {"lease_s": 1}),
    ("POST", "/v1/query", {"sql": SELECT, "explain": True, "limit": 2}),
    ("POST", "/v1/query", {"sql": "SELECT city, SUM(city) AS s FROM users WHERE city >= '' GROUP BY city"}),
    ("POST", "/v1/query", {"sql": f"{SELECT} ORDER BY id LIMIT 1"}),
    ("POST", "/v1/query", {"sql": f"EXPLAIN {SELECT}"}),
    ("GET", "/v1/indexes", {}),
    ("GET", "/healthz", {}),
    ("GET", "/readyz", {}),
]


@pytest.fixture(scope="module")
def patient() -> Iterator[str]:
    """A running node."""
    with serving(world_of_cities().views["n0"], load_settings(scan=PATIENT)) as where:
        yield where


def test_good_answers_have_the_members_that_the_page_shows(patient: str) -> None:
    page = schemathesis.openapi.from_url(f"{patient}/openapi.json")
    for method, path, body in ASKED:
        shown = path if path in ("/v1/query", "/v1/indexes", "/healthz", "/readyz") else None
        name, action = ("", "") if shown else path.removeprefix("/v1/indexes/").split("/")
        operation = page[shown or f"/v1/indexes/{{name}}/{action}"][method]
        parameters: dict[str, Any] = {} if shown else {"path_parameters": {"name": name}}
        if method == "POST":
            parameters |= {"body": body, "media_type": "application/json"}
        assert check(operation.Case(**parameters)) == 200, body


def flights() -> scan_world.World:
    """The indexes of `make demo` that queries on the page ask, with some flights in them."""
    wanted = ("arrivals", "by_airport")
    statements = [STATEMENTS[name].replace("ON flights", "ON users") for name in wanted]
    world = scan_world.World(
        *(re.sub(r",\s*defer_build=true", "", statement) for statement in statements), node_count=1
    )
    include = b'{"flight":"UA1","origin":"EWR","arrival_delay":-3}'
    arrivals = [
        scan_world.Doc([airport, f"2013-01-01T1{at}:00"], f"f{airport}{at}", include)
        for airport in ("BOS", "LAX", "ORD")
        for at in range(5)
    ]
    touching = [scan_world.Doc([doc.key[0], "arrived"], doc.id) for doc in arrivals]
    world.commit(5, {"arrivals": arrivals, "by_airport": touching})
    return world


def test_examples_of_queries_and_tails_work_when_they_are_pressed() -> None:
    with Endpoint(flights()) as made:
        paths = made.get("/openapi.json").json()["paths"]
        shown = paths[_QUERY]["post"]["requestBody"]["content"]["application/json"]["examples"]
        for one in shown.values():
            answer = made.post(_QUERY, sql=one["value"]["sql"].replace("FROM flights", "FROM users"))
            assert answer.status_code == 200, (one, answer.text)
            assert answer.json().get("rows") != [], one
        assert len(shown) >= 4
        for path, action in ((_QUERY, _QUERY), ("/v1/indexes/{name}/tail", "/v1/indexes/arrivals/tail")):
            parameters = paths[path]["get"]["parameters"]
            query = {one["name"]: one["example"] for one in parameters if "example" in one}
            if query.pop("name", None) is None:
                query["sql"] = query["sql"].replace("FROM flights", "FROM users")
            else:
                query["events"] = "1"
            answer = made.get(action, **query)
            assert answer.status_code == 200, (query, answer.text)
            assert "UA1" in answer.text, answer.text


# --- limits that make no sense ----------------------------------------------------------------------------

_SCAN, _COUNT, _AGGREGATE = (f"/v1/indexes/by_city/{one}" for one in ("scan", "count", "aggregate"))
_HOLD, _QUERY, _TAIL = "/v1/indexes/by_city/snapshots", "/v1/query", "/v1/indexes/by_city/tail"
_FAR: Any = 10**30
_EXPRESSION = "(" * 5_000 + "n" + ")" * 5_000
ABSURD: list[tuple[str, dict[str, Any]]] = [
    *((path, {"timeout_ms": value}) for path in (_SCAN, _COUNT, _HOLD) for value in (0, -1, 1.5, "soon")),
    *((path, {"limit": value}) for path in (_SCAN, _AGGREGATE) for value in (0, -1, _FAR, 2**63, True, [1])),
    *((path, {"offset": value}) for path in (_SCAN, _AGGREGATE) for value in (-1, _FAR, 2**64, "1")),
    *((path, {"slices": value}) for path in (_SCAN, _COUNT) for value in ([], [3], [-1], [_FAR], 0)),
    *((path, {"spans": [{}] * 10_000}) for path in (_SCAN, _COUNT, _AGGREGATE)),
    *((path, {"at_least": value}) for path in (_SCAN, _HOLD) for value in ({"2": 1}, {"-1": 1}, {"0": -1})),
    *((path, {"max_staleness_ms": -1}) for path in (_SCAN, _COUNT, _HOLD)),
    *((path, {"equals": ["a", 1, 2, 3]}) for path in (_SCAN, _COUNT, _AGGREGATE)),
    *((path, {"low": ["a"] * 1_000}) for path in (_SCAN, _COUNT, _AGGREGATE)),
    *((path, {"unknown": 1}) for path in (_SCAN, _COUNT, _AGGREGATE, _HOLD, _QUERY)),
    *((_HOLD, {"lease_s": value}) for value in (0, -1, _FAR, 86_400 * 365)),
    (_SCAN, {"columns": ["id"] * 2 + ["name"]}),
    (_SCAN, {"types": {"city": "varchar"}}),
    (_AGGREGATE, {"functions": []}),
    (_AGGREGATE, {"functions": ["count"] * 10_000}),
    (_AGGREGATE, {"functions": ["median(n)"]}),
    (_AGGREGATE, {"functions": ["sum(nothing)"]}),
    (_AGGREGATE, {"functions": [f"sum({_EXPRESSION})"]}),
    (_AGGREGATE, {"functions": ["count"], "group_by": ["n"] * 10_000}),
    (_QUERY, {"sql": ""}),
    (_QUERY, {"sql": "DROP INDEX by_city"}),
    (_QUERY, {"sql": "SELECT * FROM nothing"}),
    (_QUERY, {"sql": f"SELECT id FROM users WHERE {_EXPRESSION} = 1"}),
    (_QUERY, {"sql": f"{SELECT} LIMIT -1"}),
    (_QUERY, {"sql": f"{SELECT} OFFSET {_FAR}"}),
    (_QUERY, {"sql": f"{SELECT} OR " + " OR ".join(f"(city = '{n}' AND n = {n})" for n in range(20_000))}),
    (_QUERY, {"sql": "x" * (1 << 19)}),
    (_QUERY, {"sql": SELECT, "limit": _FAR}),
    *((_TAIL, {"events": value}) for value in (0, -1, "many")),
    (_TAIL, {"events": 1, "consistency": "tip"}),
]


def test_absurd_limits_are_refused_with_what_to_do() -> None:
    with Endpoint(world_of_cities(), **PATIENT) as made:
        for path, asked in ABSURD:
            if path == _TAIL:
                answer = made.get(path, **asked)
            else:
                body = {"functions": ["count"], **asked} if path == _AGGREGATE else asked
                answer = made.post(path, **body)
            told = f"{path} {str(asked)[:200]}: {answer.status_code} {answer.text[:400]}"
            assert answer.status_code in (404, 422), told
            check_problem(answer.status_code, answer.json(), told)


# --- tokens -----------------------------------------------------------------------------------------------

PLACES: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
    "session": [
        ("POST", _SCAN, {}),
        ("POST", _COUNT, {}),
        ("POST", _AGGREGATE, {"functions": ["count"]}),
        ("POST", _HOLD, {}),
        ("POST", _QUERY, {"sql": SELECT}),
        ("GET", _TAIL, {"events": 1}),
    ],
    "page": [("POST", _SCAN, {})],
    "query page": [("POST", _QUERY, {})],
    "at": [
        ("POST", _SCAN, {}),
        ("POST", _COUNT, {}),
        ("POST", _AGGREGATE, {"functions": ["count"]}),
        ("POST", _QUERY, {"sql": SELECT}),
        ("GET", _TAIL, {"events": 1}),
        ("DELETE", _HOLD, {}),
    ],
    "from": [("GET", _TAIL, {"events": 1})],
}
"""Kind of token -> where one is taken."""


def tokens_of(made: Endpoint, index: str = "by_city", sql: str = SELECT) -> dict[str, str]:
    """A good token of each kind."""
    scan, hold, tail = (f"/v1/indexes/{index}/{action}" for action in ("scan", "snapshots", "tail"))
    first = made.post(scan, limit=1).json()
    events = made.get(tail, events=1).text
    return {
        "session": first["session"],
        "page": first["page"],
        "query page": made.post(_QUERY, sql=sql, limit=1).json()["page"],
        "at": made.post(hold, lease_s=30).json()["at"],
        "from": events.split("id: ")[1].split("\n")[0],
    }


def ask_with(made: Endpoint, kind: str, token: str) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Ask everywhere where a kind of token is taken: (what was asked, status, problem)."""
    for method, path, more in PLACES[kind]:
        asked = {**more, kind.removeprefix("query "): token}
        if method == "POST":
            answers = [made.post(path, **asked)]
        elif kind == "from" and token.isascii() and token.isprintable() and token:
            header = {"Last-Event-ID": token}
            answers = [made.get(path, **asked), made.request("GET", path, params=more, headers=header)]
        else:
            answers = [made.request(method, path, params=asked)]
        for answer in answers:
            told = f"{method} {path} {asked}: {answer.status_code} {answer.text[:400]}"
            bad = answer.status_code >= 300
            yield told, answer.status_code, answer.json() if bad else {}


def damaged(token: str) -> Iterable[str]:
    """Forgeries of a token."""
    yield from ("x", "0", "null", "A" * 16, "A" * 10_000, "%00", "ü", token[:-1], token[1:], token[:16])
    yield from (token + "A", token.swapcase(), f"{token},{token[:-2]}", token[::-1])
    for at in (0, 7, 15, 16, 17, len(token) // 2):  # in the signature, and behind it
        yield f"{token[:at]}{'B' if token[at] != 'B' else 'C'}{token[at + 1 :]}"


def refuse(made: Endpoint, kind: str, token: str, *types: str) -> None:
    """A token is refused wherever it is taken: as no token, or by problems of certain types."""
    asked = 0
    for told, status, problem in ask_with(made, kind, token):
        check_problem(status, problem, told)
        assert problem["type"] in (types or ("invalid-token",)), told
        asked += 1
    assert asked


def test_good_tokens_are_taken_and_forged_ones_refused() -> None:
    foreign = world_of_cities()
    foreign.record(ClusterRecord("c", "ab" * 32, 0))
    world = world_of_cities()
    with Endpoint(world) as made, Endpoint(foreign) as other:
        good = tokens_of(made)
        world.commit(
            6, {name: world.documents[name][1:] for name in ("by_city", "with_name")}
        )  # for the tail
        for kind, token in good.items():
            for told, status, _ in ask_with(made, kind, token):
                assert status in (200, 204) or (kind == "from" and status == 410), told
        good = tokens_of(made)  # a hold was given back
        for kind, token in good.items():
            for forged in damaged(token):
                refuse(made, kind, forged)
            for another in good.keys() - {kind}:
                refuse(made, kind, good[another])
        for kind, token in tokens_of(other).items():
            refuse(made, kind, token)
        of_another_index = tokens_of(made, "with_name", "SELECT name, id FROM users WHERE city >= ''")
        for kind in ("page", "from"):
            refuse(made, kind, of_another_index[kind])
        refuse(made, "at", of_another_index["at"], "invalid-token", "no-index")  # of a query


def test_tokens_that_have_run_out_say_how_to_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of_cities()
    with Endpoint(world) as made:
        tokens = tokens_of(made)
        for module in (local, scan_world):
            monkeypatch.setattr(module, "now_ms", lambda: clock.now_ms() + 3_600_000)
        for number in (6, 7, 8):
            world.commit(number, {name: world.documents[name] for name in ("by_city", "with_name")})
        for kind in ("page", "query page", "from"):
            refuse(made, kind, tokens[kind], "snapshot-gone")
        for told, status, problem in ask_with(made, "at", tokens["at"]):
            if "DELETE" in told:  # given back, again
                assert status == 204, told
                continue
            assert (status, problem.get("type")) == (410, "snapshot-gone"), told
            check_problem(status, problem, told)
        for told, status, _ in ask_with(made, "session", tokens["session"]):
            assert status == 200, told


def test_a_tail_of_a_held_moment_tells_when_that_was() -> None:
    with Endpoint(world_of_cities()) as made:
        held = made.post(_HOLD, lease_s=30).json()
        event = made.get(_TAIL, at=held["at"], events=1).text
        told = json.loads(event.split("data: ")[1])
        assert {name: told[name] for name in ("snapshot", "timestamp", "session")} == {
            name: held[name] for name in ("snapshot", "timestamp", "session")
        }


# --- the coordinator's page -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def coordinator() -> Iterator[str]:
    """A running coordinator's API, over the real leader."""
    with served(busy_day()) as where:
        yield where


def ask_coordinator(operation: Any, mode: GenerationMode, known: dict[str, list[str]]) -> set[int]:
    """As `statuses_of`. Names in paths are now and then ones that there are."""
    statuses: set[int] = set()
    drawn = {name: st.sampled_from(values) for name, values in known.items()}

    @seed(16)
    @settings(max_examples=5, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=mode), st.fixed_dictionaries(drawn), st.booleans())
    def ask(case: schemathesis.Case[Any], names: dict[str, str], real: bool) -> None:
        for name in case.path_parameters:
            if real and name in names:
                case.path_parameters[name] = names[name]
        answer = case.call()
        statuses.add(answer.status_code)
        told = (
            f"{case.method} {case.path} {case.query} {case.body!r}: {answer.status_code} {answer.text[:300]}"
        )
        if answer.status_code < 300:
            return
        if case.path == "/v1/health" and answer.status_code == 503:
            assert health.read(json.loads(answer.text)).status == "failing"
            return
        assert answer.headers["content-type"][0] == "application/problem+json", told
        problem = json.loads(answer.text)
        # Lists that nodes keep: no node runs here.
        told_of = {(503, "node-unavailable")}
        assert answer.status_code < 500 or (answer.status_code, problem["type"]) in told_of, told
        assert problem["status"] == answer.status_code, told
        assert problem["detail"], told
        assert problem.get("next_step"), told

    try:
        ask()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE
    return statuses


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_nothing_that_the_coordinator_is_asked_is_a_server_error(
    coordinator: str, mode: GenerationMode
) -> None:
    builds = [one["id"] for one in httpx.get(f"{coordinator}/v1/builds").json()]
    known = {"name": ["by_destination", "by_origin"], "build": builds, "node": ["node-1"]}
    statuses = {}
    for found in schemathesis.openapi.from_url(f"{coordinator}/openapi.json").get_all_operations():
        assert isinstance(found, Ok), "the page has a schema that is none"
        operation = found.ok()
        statuses[operation.label] = ask_coordinator(operation, mode, known)
    assert statuses["POST /v1/statements"] & {400, 422}, statuses
    if mode is GenerationMode.POSITIVE:
        assert sum(bool(found & {200, 202}) for found in statuses.values()) >= 10, statuses
