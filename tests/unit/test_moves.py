"""Drains and rebalances as operators see them: ordered, listed with the jobs, shown of nodes and indexes,
told by health and metrics. (How copies move is `coordinator.copies.moving`'s.)"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from coordinator.catalog.registry import ConflictError
from coordinator.copies.choosing import TURN
from coordinator.copies.grace import READERS
from coordinator.copies.moving import NoSuchNodeError
from coordinator.http import metrics
from coordinator.jobs.registry import NoSuchJobError
from coordinator.statements.commands import CommandResult
from coordinator.views import copies as copy_views
from coordinator.views import health, views
from coordinator.views import jobs as job_views
from keytide.catalog.copies import LeavingCopy, Move, RebalanceRecord
from keytide.catalog.records import IndexRecord
from keytide.cli import rendering as looks
from keytide.model.health import Reason
from tests.unit.copy_world import INDEX, NODES, CopyWorld
from tests.unit.moves_double import MovesDouble

MOVES = [Move(INDEX, 0, "n1", "n3", 3_000), Move(INDEX, 1, "n1", "n2", 1_000)]


@pytest.fixture
def world() -> CopyWorld:
    return CopyWorld().ready()


@pytest.fixture
def moves(world: CopyWorld, monkeypatch: pytest.MonkeyPatch) -> MovesDouble:
    return MovesDouble(monkeypatch, world.leader)


def order(world: CopyWorld, name: str, *given: Any) -> CommandResult:
    """A command, committed."""
    answer: CommandResult = getattr(world.leader.commands, name)(*given, world.now)
    world.take(answer.instructions)
    return answer


def node(world: CopyWorld, name: str) -> dict[str, Any]:
    return next(one for one in views.nodes(world.leader, world.now) if one["id"] == name)


def reasons(world: CopyWorld) -> list[Reason]:
    return [one for one in health.of(world.leader, world.now).reasons if one.kind == "node"]


def shown(world: CopyWorld, id_: str) -> dict[str, Any]:
    return job_views.by_id(world.leader, id_, world.now)


def put_index(world: CopyWorld, **members: Any) -> IndexRecord:
    index = world.leader.dictionary.catalog.index(INDEX)
    assert index is not None
    index = replace(index, **members)
    world.leader.dictionary.put(index)
    world.tick()
    return index


def put_rebalance(world: CopyWorld, left: list[int], **members: Any) -> RebalanceRecord:
    record = RebalanceRecord("r40", members.pop("state", "RUNNING"), world.now, MOVES, left, **members)
    world.leader.dictionary.put(record)
    world.tick()
    return record


# --- drains -------------------------------------------------------------------------------------------------


def test_a_drain_is_a_job_until_its_node_may_have_slices_again(world: CopyWorld, moves: MovesDouble) -> None:
    moves.on["n1"] = 2
    began_at = world.now
    answer = order(world, "drain", "n1")
    assert (answer.job, answer.message) == ("drain-n1", "node n1 is being drained")
    moves.waiting["n1"] = "room on a disk"
    world.now += 2_000
    (job,) = job_views.jobs(world.leader, world.now)
    assert job == shown(world, "drain-n1")
    assert (job["id"], job["kind"], job["state"], job["percent"]) == ("drain-n1", "drain", "RUNNING", None)
    assert job["drain"] == {"node": "n1", "copies": 2}
    assert (job["detail"], job["waiting_for"]) == ("node n1 has 2 copies still", "room on a disk")
    assert (job["created_at"], job["seconds"], job["finished_at"]) == (began_at, 2.0, None)
    assert job.keys() == job_views.job(world.leader, _verification(world), world.now).keys()
    moves.on.clear()
    job = shown(world, "drain-n1")
    assert (job["state"], job["percent"], job["waiting_for"]) == ("DONE", 100.0, "")
    order(world, "undrain", "n1")
    assert [one["kind"] for one in job_views.jobs(world.leader, world.now)] == ["verify"]
    assert shown(world, "drain-n1")["state"] == "CANCELLED"  # (who has waited for it hears the end)


def _verification(world: CopyWorld) -> Any:
    answer = world.leader.commands.start_job("verify", "by_city", world.now)
    world.take(answer.instructions)
    return world.leader.jobs.get(answer.job)


def test_a_drain_is_cancelled_by_its_job(world: CopyWorld, moves: MovesDouble) -> None:
    order(world, "drain", "n1")
    assert order(world, "cancel_job", "drain-n1").message == "node n1 may have slices again"
    assert not world.leader.dictionary.catalog.drained()
    with pytest.raises(NoSuchJobError, match="node n1 is not drained"):
        order(world, "cancel_job", "drain-n1")
    with pytest.raises(NoSuchNodeError, match="there is no node n9"):
        order(world, "drain", "n9")
    with pytest.raises(NoSuchJobError, match="no node 'n9'"):
        shown(world, "drain-n9")
    with pytest.raises(ConflictError, match="it has no report") as caught:
        world.leader.jobs.get("drain-n1")
    assert caught.value.problem_type == "job-moves-copies"


def test_nodes_show_their_drain_and_their_copies(world: CopyWorld, moves: MovesDouble) -> None:
    assert [(node(world, one)["drain"], node(world, one)["counted"]) for one in NODES] == [
        (None, 2),
        (None, 1),
        (None, 1),
    ]
    moves.on["n1"] = 1
    put_index(world, placement=[["n3", "n2"], ["n3", "n1"]], leaving={0: {"n1": LeavingCopy()}})
    order(world, "drain", "n1")
    found = node(world, "n1")
    assert (found["drain"], found["counted"], found["leaving"]) == ("draining", 1, 1)
    moves.on.clear()
    assert node(world, "n1")["drain"] == "drained"


def test_a_node_that_is_drained_and_gone_worries_nobody(world: CopyWorld, moves: MovesDouble) -> None:
    put_index(world, placement=[["n2", "n3"], ["n3", "n2"]])
    order(world, "drain", "n1")
    assert reasons(world) == []
    world.silent = {"n1"}
    world.live(5_000)
    assert reasons(world) == []
    moves.on["n1"] = 1
    (one,) = reasons(world)
    assert (one.subject, one.status) == ("node n1", "degraded")
    order(world, "undrain", "n1")
    assert reasons(world) == [one]


@pytest.mark.parametrize(
    ("waits", "status"),
    [(TURN, "ok"), (f"{READERS}slice 0 there", "ok"), ("room on a disk", "degraded")],
)
def test_a_drain_that_waits_is_told(world: CopyWorld, moves: MovesDouble, waits: str, status: str) -> None:
    moves.on["n1"] = 2
    order(world, "drain", "n1")
    moves.waiting["n1"] = waits
    (one,) = reasons(world)
    assert (one.subject, one.status) == ("node n1", status)
    assert one.reason == f"it is being drained, and copies are still on it: the next waits for {waits}"
    assert "keytide job show drain-n1" in one.next_step
    assert "keytide node undrain n1" in one.next_step
    moves.on.clear()
    assert reasons(world) == []


# --- rebalances ---------------------------------------------------------------------------------------------


def test_a_rebalance_is_a_job(world: CopyWorld, moves: MovesDouble) -> None:
    moves.planned = MOVES
    assert copy_views.plan(world.leader, MOVES) == {
        "moves": [
            {"index": "by_city", "slice": 0, "source": "n1", "target": "n3", "bytes": 3_000},
            {"index": "by_city", "slice": 1, "source": "n1", "target": "n2", "bytes": 1_000},
        ],
        "bytes": 4_000,
    }
    id_ = order(world, "rebalance", MOVES).job
    job = shown(world, id_)
    assert (job["kind"], job["state"], job["percent"], job["eta_s"]) == ("rebalance", "RUNNING", 0.0, None)
    assert (job["indexes"], job["detail"]) == (["by_city"], "0 of 2 moves are done")
    assert job["keyspace"] is None
    with pytest.raises(ConflictError):
        order(world, "rebalance", MOVES)
    with pytest.raises(ConflictError, match="it has no report"):
        world.leader.jobs.get(id_)
    assert order(world, "cancel_job", id_).message == f"rebalance {id_} is cancelled"
    job = shown(world, id_)
    assert (job["state"], job["finished_at"]) == ("CANCELLED", world.now)
    with pytest.raises(ConflictError):
        order(world, "cancel_job", id_)


def test_a_rebalance_shows_what_it_waits_for(world: CopyWorld) -> None:
    put_rebalance(world, [0, 1])
    world.leader.copies.moves.held_up["r40"] = "room"
    assert shown(world, "r40")["waiting_for"] == "room"


def test_a_rebalance_is_as_far_as_the_bytes_that_have_moved(world: CopyWorld) -> None:
    put_rebalance(world, [1])
    world.now += 3_000
    job = shown(world, "r40")
    assert (job["percent"], job["detail"]) == (75.0, "1 of 2 moves are done")
    assert job["eta_s"] == pytest.approx(1.0, abs=0.1)
    world.fill("c50", 1, "n2", why="moved", replaces="n1", rebalance="r40")
    world.says["n2", 1] = {
        "state": "FILLING",
        "copy": "c50",
        "number": -1,
        "rows": 50,
        "rows_total": 100,
    }
    world.beat()
    job = shown(world, "r40")
    assert job["percent"] == 87.5
    assert job["rebalance"] == {
        "moves_total": 2,
        "moves_done": 1,
        "moves_left": 1,
        "dropped": 0,
        "bytes_done": 3_500,
        "bytes_total": 4_000,
    }
    assert job["waiting_for"] == ""
    world.silent = {"n1", "n3"}
    world.live(5_000)
    assert shown(world, "r40")["waiting_for"].startswith("node n3, which has said nothing for ")


def test_moves_that_came_to_nothing_are_told(world: CopyWorld) -> None:
    put_rebalance(world, [], state="DONE", dropped=1, finished_at=world.now, detail="by_city was altered")
    job = shown(world, "r40")
    assert (job["state"], job["percent"]) == ("DONE", 100.0)
    assert job["detail"] == "1 of 2 moves are done, 1 came to nothing, by_city was altered"


def test_moves_without_bytes_are_counted(world: CopyWorld) -> None:
    record = RebalanceRecord("r40", "RUNNING", world.now, [replace(one, bytes=0) for one in MOVES], [0])
    world.leader.dictionary.put(record)
    world.tick()
    assert shown(world, "r40")["percent"] == 50.0


@pytest.mark.parametrize(("rebalance", "part_of"), [("r40", "r40"), ("", "drain-n1")])
def test_a_copy_that_moves_says_what_it_is_for(world: CopyWorld, rebalance: str, part_of: str) -> None:
    world.fill("c50", 0, "n3", why="moved", replaces="n1", rebalance=rebalance)
    (job,) = job_views.jobs(world.leader, world.now)
    assert (job["copy"]["why"], job["copy"]["replaces"], job["copy"]["part_of"]) == ("moved", "n1", part_of)
    assert job["detail"].startswith(
        f"slice 0 on node n3, from node n1, in place of the one on node n1 ({part_of}): "
    )


# --- copies that leave --------------------------------------------------------------------------------------


def test_copies_that_leave_are_shown(world: CopyWorld, capsys: pytest.CaptureFixture[str]) -> None:
    index = put_index(
        world,
        placement=[["n2", "n3"], ["n3", "n1"]],
        leaving={0: {"n1": LeavingCopy(copy="c3")}},
    )
    world.says["n1", 0] = {"copy": "c3", "leases": 4}
    found = [
        (one["slice"], one["node"], one["copy"], one["counted"], one["state"], one["leases"])
        for one in views.slices(world.leader, index, world.now)
    ]
    assert (0, "n1", "c3", False, "LEAVING", None) in found
    world.leader.stability.nodes.by_id["n1"]._slices[INDEX, 0] = world.status("n1", 0)
    document = views.index(world.leader, index, world.now)
    assert document["copies"]["leaving"] == 1
    slices = views.slices(world.leader, index, world.now)
    assert [one["leases"] for one in slices if one["state"] == "LEAVING"] == [4]
    looks.show_index({**document, "slice_states": slices})
    told = capsys.readouterr().out
    assert "LEAVING" in told
    assert "leases" in told


def test_metrics_of_moves(world: CopyWorld) -> None:
    put_rebalance(world, [1])
    put_index(world, leaving={0: {"n3": LeavingCopy()}, 1: {"n2": LeavingCopy()}})
    page = metrics.render(world.leader, world.now).decode()
    assert 'keytide_copies_leaving{index="by_city"} 2.0' in page
    assert "keytide_rebalance_moves_left 1.0" in page
    put_rebalance(world, [1], state="CANCELLED")
    assert "keytide_rebalance_moves_left 0.0" in metrics.render(world.leader, world.now).decode()
