"""How fast copies are filled, changed while they run: of a copy, a rebalance, a drain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from msgspec import structs
from typer.testing import CliRunner

from coordinator.catalog.registry import ConflictError
from coordinator.jobs.registry import NoSuchJobError
from coordinator.statements.copy_rates import LEAST, MOST
from coordinator.views import jobs as job_views
from indexer.copying.rate_limit import RateLimit
from indexer.copying.source import CHUNK_BYTES, IDLE_MS, UNWISHED_BYTES
from keytide.catalog.copies import CopyRecord, Move
from keytide.cli import app
from keytide.errors import CallerError
from tests.browser.scene import Scene, busy_day, served
from tests.unit.copies_world import INDEX, LIMITS, CopiesWorld

RATE = 1 << 20


def serving(placement: list[list[str]], copies_per_node: int = 1) -> CopiesWorld:
    limits = replace(LIMITS, copies_per_node=copies_per_node)
    world = CopiesWorld(placement, replicas=len(placement[0]) - 1, limits=limits)
    world.go(2_000)
    assert world.published > 0
    return world


def order(world: CopiesWorld, name: str, *given: Any) -> str:
    """A command; what it says."""
    answer = getattr(world.leader.commands, name)(*given, world.now)
    world.take(answer.instructions)
    return str(answer.message)


def throttle(world: CopiesWorld, id_: str, rate: int) -> str:
    return order(world, "throttle_job", id_, rate)


def rates(world: CopiesWorld) -> dict[str, int]:
    return {one.id: one.rate for one in world.records()}


def shown(world: CopiesWorld, id_: str) -> dict[str, Any]:
    return job_views.by_id(world.leader, id_, world.now)


def next_one(world: CopiesWorld, record: CopyRecord) -> CopyRecord:
    """The copy that follows when this one is there."""
    world.fill(record)
    world.until(lambda: record not in world.records() and bool(world.records()))
    return world.record()


def wanted(world: CopiesWorld, replicas: int) -> None:
    """The index is to have so many copies more."""
    index = world.index("by_city")
    definition = structs.replace(index.definition, replicas=replicas)
    world.leader.dictionary.put(structs.replace(index, definition=definition))
    world.go(1_000)


# --- of a copy ----------------------------------------------------------------------------------------------


def test_the_rate_of_one_copy() -> None:
    world = serving([["n1"], ["n2"]], copies_per_node=2)
    wanted(world, 1)
    first, second = world.records()
    assert (shown(world, first.id)["rate"], shown(world, first.id)["copy"]["rate"]) == (None, None)
    told = f"copies of job {first.id} are filled at most 1,048,576 bytes/s each from now on"
    assert throttle(world, first.id, RATE) == told
    assert world.told("copies-throttled") == [told]
    assert rates(world) == {first.id: RATE, second.id: 0}
    job = shown(world, first.id)
    assert (job["rate"], job["copy"]["rate"]) == (RATE, RATE)
    world.succeed()
    world.go(1_000)
    assert rates(world) == {first.id: RATE, second.id: 0}
    assert "as fast as their nodes' settings let them" in throttle(world, first.id, 0)
    assert rates(world) == {first.id: 0, second.id: 0}


def test_another_source_is_read_at_the_same_rate() -> None:
    world = serving([["n1", "n2"]])
    wanted(world, 2)
    record = world.record()
    throttle(world, record.id, RATE)
    world.nodes[record.source].copies[0].state = "LOST"
    world.go(1_000)
    assert (world.record().source != record.source, world.record().rate) == (True, RATE)


# --- of what moves ------------------------------------------------------------------------------------------


def test_a_drain_gives_its_rate_to_the_copies_that_it_has_and_that_it_begins() -> None:
    world = serving([["n1"], ["n1"], ["n2"]])
    order(world, "drain", "n1")
    world.go(500)
    record = world.record()
    assert record.replaces == "n1"
    throttle(world, "drain-n1", RATE)
    assert rates(world) == {record.id: RATE}
    assert shown(world, "drain-n1")["rate"] == RATE
    world.succeed()
    assert next_one(world, world.record()).rate == RATE
    throttle(world, "drain-n1", 0)
    assert (world.record().rate, shown(world, "drain-n1")["rate"]) == (0, None)


def test_a_node_that_is_undrained_forgets_the_rate() -> None:
    world = serving([["n1"], ["n2"]])
    order(world, "drain", "n1")
    throttle(world, "drain-n1", RATE)
    order(world, "undrain", "n1")
    order(world, "drain", "n1")
    assert shown(world, "drain-n1")["rate"] is None
    world.go(500)
    assert world.record().rate == 0


def test_a_rebalance_gives_its_rate_to_the_copies_that_it_has_and_that_it_begins() -> None:
    world = serving([["n1"], ["n1"], ["n2"]])
    order(world, "rebalance", [Move(INDEX, number, "n1", "n3") for number in (0, 1)])
    (id_,) = (one.id for one in world.leader.dictionary.catalog.rebalances())
    world.go(500)
    record = world.record()
    throttle(world, id_, RATE)
    assert rates(world) == {record.id: RATE}
    assert shown(world, id_)["rate"] == RATE
    world.succeed()
    second = next_one(world, world.record())
    assert (second.rebalance, second.rate) == (id_, RATE)
    throttle(world, id_, 2 * RATE)
    assert rates(world) == {second.id: 2 * RATE}


def test_only_what_belongs_to_a_job_is_changed() -> None:
    """A copy that a rebalance moves off a node is not of the drain of the node."""
    world = serving([["n1"], ["n1"], ["n2"]], copies_per_node=100)
    order(world, "rebalance", [Move(INDEX, 0, "n1", "n3")])
    world.go(500)
    (moved,) = world.records()
    order(world, "drain", "n1")
    world.go(500)
    (drained,) = (one for one in world.records() if one != moved)
    throttle(world, "drain-n1", RATE)
    assert rates(world) == {moved.id: 0, drained.id: RATE}
    throttle(world, moved.rebalance, 2 * RATE)
    assert rates(world) == {moved.id: 2 * RATE, drained.id: RATE}


# --- what cannot be -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [-1, 1, LEAST - 1, MOST + 1, 10**30])
def test_rates_that_make_no_sense_are_refused(rate: int) -> None:
    world = serving([["n1"]])
    wanted(world, 1)
    record = world.record()
    with pytest.raises(CallerError, match="cannot be filled with") as caught:
        throttle(world, record.id, rate)
    assert (caught.value.problem_type, caught.value.status) == ("copy-rate-out-of-range", 422)
    assert "from 65,536 to 1,000,000,000,000 bytes/s, or 0" in caught.value.next_step
    assert world.records() == [record]


def test_at_the_least_rate_a_source_keeps_what_it_reads() -> None:
    """Also for a target of the release before, which does not say how much it wants."""
    assert 4 * 1_000 * max(RateLimit(LEAST).chunk_bytes, UNWISHED_BYTES) / LEAST < IDLE_MS
    assert RateLimit(MOST).chunk_bytes > CHUNK_BYTES


def test_jobs_that_fill_no_copies_or_are_over_are_refused() -> None:
    world = serving([["n1"], ["n2"]])
    with pytest.raises(NoSuchJobError, match="no job 'c99'"):
        throttle(world, "c99", RATE)
    for id_ in ("drain-n1", "drain-n9"):
        with pytest.raises(NoSuchJobError, match=f"node {id_[-2:]} is not drained"):
            throttle(world, id_, RATE)
    job = world.leader.commands.start_job("verify", "by_city", world.now).job
    with pytest.raises(ConflictError, match="of kind verify, which fills no copies") as caught:
        throttle(world, job, RATE)
    assert caught.value.problem_type == "job-fills-no-copies"
    order(world, "rebalance", [])
    (over,) = (one.id for one in world.leader.dictionary.catalog.rebalances())
    order(world, "drain", "n3")
    for id_, why in ((over, "it is DONE"), ("drain-n3", "node n3 has no copies any more")):
        with pytest.raises(ConflictError, match=why) as caught:
            throttle(world, id_, RATE)
        assert caught.value.problem_type == "job-over"


# --- over HTTP, and by the command --------------------------------------------------------------------------


@pytest.fixture
def scene() -> Scene:
    return busy_day()


@pytest.fixture
def address(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with served(scene) as url:
        monkeypatch.setenv("KEYTIDE_URL", url)
        yield url


def run_json(*arguments: str, status: int = 0) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)


def test_the_command_changes_the_rate(address: str) -> None:
    id_ = run_json("node", "drain", "node-1")["id"]
    assert run_json("job", "throttle", id_, "--copy-rate", str(RATE))["rate"] == RATE
    assert run_json("job", "show", id_)["rate"] == RATE
    for none in ("none", "0"):
        assert run_json("job", "throttle", id_, "--copy-rate", none)["rate"] is None
        assert run_json("job", "throttle", id_, "--copy-rate", str(RATE))["rate"] == RATE
    problem = run_json("job", "throttle", id_, "--copy-rate", "-5", status=1)
    assert problem["type"] == "copy-rate-out-of-range"
    for wrong in (["--copy-rate", "fast"], []):
        result = CliRunner().invoke(app, ["job", "throttle", id_, *wrong])
        assert result.exit_code == 2
    assert run_json("job", "show", id_)["rate"] == RATE


def test_the_route_takes_a_rate_or_null(address: str) -> None:
    id_ = run_json("node", "drain", "node-1")["id"]
    url = f"{address}/v1/jobs/{id_}"
    assert httpx.patch(url, json={"copy_rate": RATE}).json()["rate"] == RATE
    for body in ({}, {"copy_rate": "fast"}, {"rate": RATE}, {"copy_rate": 1.5}):
        assert httpx.patch(url, json=body).status_code == 422
    answer = httpx.patch(url, json={"copy_rate": None})
    assert (answer.status_code, answer.json()["rate"]) == (200, None)
    assert httpx.patch(f"{address}/v1/jobs/c99", json={"copy_rate": RATE}).status_code == 404
