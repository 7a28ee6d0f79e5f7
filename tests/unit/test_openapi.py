"""Requests made from the OpenAPI page by schemathesis: whatever fits the schemas, and what nearly does, is
answered, or refused with a problem that says what and where. Nothing is a server error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode

from keytide.settings import load_settings
from tests.unit.test_api import serving, world_of_cities


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A running node with short waits."""
    limits = {"default_timeout_ms": 20, "max_timeout_ms": 50, "max_limit": 100, "max_leases": 10_000}
    with serving(world_of_cities().views["n0"], load_settings(scan=limits)) as where:
        yield where


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_nothing_that_is_asked_is_a_server_error(url: str, mode: GenerationMode) -> None:
    tried = set()
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json").exclude(path_regex="/tail$")  # never ends
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), "the page has a schema that is none"
        operation = found.ok()

        @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
        @given(operation.as_strategy(generation_mode=mode), st.sampled_from(["by_city", "with_name"]))
        def ask(case: schemathesis.Case[Any], index: str) -> None:
            if "name" in case.path_parameters:
                case.path_parameters["name"] = index
            check(case)

        try:
            ask()
        except Unsatisfiable:  # nothing about it can be wrong: it takes no parameters
            continue
        tried.add(operation.path)
    assert {"/v1/indexes/{name}/scan", "/v1/indexes/{name}/snapshots", "/v1/query"} <= tried


def check(case: schemathesis.Case[Any]) -> None:
    answer = case.call()
    told = f"{case.method} {case.path} {case.query} {case.body!r}: {answer.status_code} {answer.text[:400]}"
    if answer.status_code < 300:
        return
    assert answer.status_code in (400, 401, 403, 404, 405, 406, 409, 410, 413, 415, 422, 503, 504), told
    assert answer.headers["content-type"][0].startswith("application/problem+json"), told
    problem = json.loads(answer.text)
    assert problem["type"] not in ("error", "internal-error", "invariant-violated"), told
    assert problem["detail"], told
