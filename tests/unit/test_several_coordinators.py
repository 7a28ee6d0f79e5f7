"""Several coordinators: whichever is asked, the one that leads answers; the command asks another one where
one is away, and nothing is done twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import cast

import httpx
import pytest

from coordinator.election.standby import StandsByError
from coordinator.http import api, forwarding
from keytide.cli.admin import Admin
from keytide.errors import CallerError, RetryableError
from keytide.model.health import Verdict, single
from keytide.settings.settings import load_settings
from tests.browser.scene import Scene, busy_day, served
from tests.unit.test_cli_away import NOBODY, standing_still
from tests.waiting import wait_for

CREATE = "CREATE INDEX by_speed ON flights (speed) WITH (defer_build = true)"


class _StandsBy:
    """A service that knows who leads, or does not."""

    leads = False
    term = 0
    started_at = 0
    boxes = False

    def __init__(self, leader_url: str = "") -> None:
        self.settings = load_settings()
        self.standby = self
        self.leader_url = leader_url

    def verdict_of_standby(self) -> Verdict:
        return single("cluster", "keytide", "failing", "this coordinator stands by", "ask the other one")

    def refusal(self) -> StandsByError:
        return StandsByError("this coordinator stands by", next_step="ask the other one")


def standby(held: ExitStack, leader_url: str = "") -> str:
    return held.enter_context(served(cast(Scene, _StandsBy(leader_url))))


@pytest.fixture(scope="module")
def leader() -> Iterator[str]:
    with served(busy_day()) as url:
        yield url


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as held:
        yield held


def test_a_query_may_stand_in_the_path_or_beside_it(leader: str) -> None:
    with Admin(leader) as admin:
        assert len(admin.call("GET", "/v1/events", limit=1)) == 1 < len(admin.call("GET", "/v1/events"))
        assert len(admin.call("GET", "/v1/events?limit=1")) == 1


def test_what_one_that_stands_by_is_asked_the_leader_answers(leader: str, held: ExitStack) -> None:
    other = standby(held, leader)
    for path in (
        "/v1/indexes",
        "/v1/events?limit=2",
        "/v1/indexes/no%2Fsuch%20index",
        "/v1/health",
        "/v1/no",
    ):
        told, asked = httpx.get(other + path), httpx.get(leader + path)
        assert told.status_code == asked.status_code, path
        assert told.headers["content-type"] == asked.headers["content-type"]
        if not path.startswith("/v1/health"):
            agree(other + path, leader + path)
    made = httpx.post(f"{other}/v1/statements", json={"statement": CREATE})
    assert made.json()["index"] == "by_speed", made.text
    assert httpx.get(f"{leader}/v1/indexes/by_speed").is_success
    assert httpx.delete(f"{other}/v1/indexes/by_speed").status_code == 202
    refused = httpx.post(f"{other}/v1/statements", json={"statement": "CREATE INDEX"})
    assert (refused.status_code, refused.headers["content-type"]) == (422, "application/problem+json")


def agree(*urls: str) -> None:
    """Wait until all give the same bytes: what says how long ago something was may differ now and then."""
    wait_for(lambda: len({httpx.get(url).content for url in urls}) == 1, f"the same of {urls}")


def test_pages_that_are_passed_on_are_as_guarded() -> None:
    assert {name.lower() for name in api._PAGE_HEADERS} <= forwarding.BACK


def test_its_own_state_is_its_own(leader: str, held: ExitStack) -> None:
    other = standby(held, leader)
    assert httpx.get(f"{other}/readyz").status_code == 503
    assert httpx.get(f"{other}/healthz").status_code == 200
    assert httpx.get(f"{other}/").is_success


def test_the_credential_of_whoever_asks_goes_on(held: ExitStack) -> None:
    """(This one that stands by asks for none itself, so that it is seen who refuses.)"""
    leader = held.enter_context(served(busy_day(security={"tokens": {"secret": ["read", "admin"]}})))
    other = standby(held, leader)
    assert httpx.get(f"{other}/v1/indexes").status_code == 401
    assert httpx.get(f"{other}/v1/indexes", headers={"Authorization": "Bearer secret"}).is_success


def test_a_request_is_passed_on_once(held: ExitStack) -> None:
    """To one that leads no more and believes that another one does."""
    second = _StandsBy()
    first = standby(held, held.enter_context(served(cast(Scene, second))))
    second.leader_url = first
    told = httpx.get(f"{first}/v1/indexes")
    assert (told.status_code, told.json()["type"]) == (503, "coordinator-stands-by")


@pytest.mark.parametrize("leader_url", ["", NOBODY])
def test_while_nobody_leads_nothing_is_done_and_that_is_said(held: ExitStack, leader_url: str) -> None:
    other = standby(held, leader_url)
    told = httpx.post(f"{other}/v1/statements", json={"statement": "DROP INDEX by_carrier"})
    assert (told.status_code, told.json()["type"]) == (503, "coordinator-stands-by")
    assert httpx.get(f"{other}/v1/health").json()["status"] == "failing"


def test_a_leader_that_stands_still_is_not_waited_for_for_ever(
    held: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.http.forwarding.SLACK_S", -4.5)
    monkeypatch.setenv("KEYTIDE_COORDINATOR__REQUEST_TIMEOUT_S", "5")
    other = standby(held, held.enter_context(standing_still()))
    told = httpx.post(f"{other}/v1/statements", json={"statement": "DROP INDEX by_carrier"}, timeout=20)
    assert (told.status_code, told.json()["type"]) == (503, "coordinator-silent")
    assert "look whether it was done" in told.json()["next_step"]


# --- the command --------------------------------------------------------------------------------------------


def test_the_command_goes_on_to_one_that_answers(leader: str, held: ExitStack) -> None:
    with Admin([NOBODY, standby(held), leader], seconds=20) as admin:
        assert admin.call("GET", "/v1/indexes")
        assert admin.url == leader, "the next call begins with it"
    with Admin([NOBODY, standby(held), leader], seconds=20) as admin:
        made = admin.call("POST", "/v1/statements", {"statement": CREATE})
        assert made["index"] == "by_speed"
        admin.call("DELETE", "/v1/indexes/by_speed")


def test_what_only_looks_is_asked_of_another_one_when_one_stands_still(leader: str, held: ExitStack) -> None:
    still = held.enter_context(standing_still())
    began = time.monotonic()
    with Admin([still, leader], seconds=2) as admin:
        assert admin.call("GET", "/v1/indexes")
    assert time.monotonic() - began < 20


def test_what_may_have_been_done_is_not_done_again(leader: str, held: ExitStack) -> None:
    still = held.enter_context(standing_still())
    with Admin([still, leader], seconds=1) as admin:
        with pytest.raises(RetryableError, match="did not answer within") as caught:
            admin.call("DELETE", "/v1/indexes/by_carrier")
        assert "look whether it was done" in caught.value.next_step
        assert admin.call("GET", "/v1/indexes/by_carrier")["state"] != "DROPPING"


def test_the_word_of_the_leader_is_the_last(leader: str) -> None:
    with Admin([leader, NOBODY]) as admin:
        with pytest.raises(CallerError):
            admin.call("GET", "/v1/indexes/nosuch")
        assert admin.url == leader


def test_who_stands_by_is_told_of_before_who_is_away(held: ExitStack) -> None:
    with Admin([standby(held), NOBODY], seconds=5) as admin, pytest.raises(RetryableError) as caught:
        admin.call("GET", "/v1/indexes")
    assert caught.value.problem_type == "coordinator-stands-by"
    with (
        Admin([NOBODY, NOBODY], seconds=5) as admin,
        pytest.raises(RetryableError, match="no coordinator answers"),
    ):
        admin.call("GET", "/v1/indexes")
