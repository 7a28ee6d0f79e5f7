"""What is shown of an index with several copies of each slice: sums, slices, copies as jobs, health, metrics,
what builds wait for."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from coordinator.catalog.registry import ConflictError
from coordinator.http import metrics
from coordinator.views import health, views
from coordinator.views import jobs as job_views
from coordinator.views.slices import nodes_to_ask
from keytide.cli import rendering as looks
from keytide.cli.calls import listed
from keytide.cli.jobs import JOB_COLUMNS
from keytide.model.health import Reason
from tests.unit.copy_world import INDEX, NODES, CopyWorld
from tests.unit.test_build_copies import BEHIND, LOST, at_end

FILLING = {"state": "FILLING", "copy": "c20", "number": -1, "entries": 0}


def shown(world: CopyWorld) -> dict[str, Any]:
    return views.index(world.leader, world.index("by_city"), world.now)


def slices(world: CopyWorld) -> list[dict[str, Any]]:
    return views.slices(world.leader, world.index("by_city"), world.now)


def reasons(world: CopyWorld, *kinds: str) -> list[Reason]:
    found = health.of(world.leader, world.now).reasons
    return [one for one in found if one.kind in (kinds or ("slice", "index", "node")) and one.status != "ok"]


def take_out(world: CopyWorld, number: int, node: str) -> None:
    """A copy does not count any more."""
    index = world.leader.dictionary.catalog.index(INDEX)
    assert index is not None
    placement = [
        [one for one in nodes if (n, one) != (number, node)] for n, nodes in enumerate(index.placement)
    ]
    world.leader.dictionary.put(replace(index, placement=placement))
    world.tick()


def filled(world: CopyWorld) -> CopyWorld:
    """Slice 0 has lost its copy on n2, and gets another one on n3."""
    take_out(world, 0, "n2")
    world.fill("c20", 0, "n3")
    return world


# --- sums and slices ----------------------------------------------------------------------------------------


def test_each_slice_is_counted_once() -> None:
    world = CopyWorld(replicas=2).ready()
    world.says = {(node, number): {"foreign_partition_ids": 1} for node in NODES for number in (0, 1)}
    world.beat()
    document = shown(world)
    assert (document["entries"], document["entries_by_slice"]) == (201, [100, 101])
    assert (document["bytes"], document["skipped"], document["foreign_partition_ids"]) == (2 << 20, 4, 2)
    assert (document["slices_reporting"], document["replicas"]) == (2, 2)
    assert document["copies"] == {
        "wanted": 6,
        "counted": 6,
        "serving": 6,
        "filling": 0,
        "lost": 0,
        "leaving": 0,
    }


@pytest.mark.parametrize("trouble", ["lost", "silent", "filling", "other", "catching up"])
def test_the_copy_that_says_most_stands_for_its_slice(trouble: str) -> None:
    world = CopyWorld().ready()
    worse: dict[str, dict[str, Any]] = {
        "lost": {**LOST, "entries": 0},
        "silent": {"entries": 7},
        "filling": {"state": "FILLING", "copy": "", "number": -1, "entries": 0},
        "other": {"copy": "c3", "entries": 7},
        "catching up": {**BEHIND, "entries": 7},
    }
    world.says["n1", 0] = worse[trouble]
    world.beat()
    if trouble == "silent":
        world.silent = {"n1"}
        world.says["n3", 1] = {"entries": 101}
        world.live(5_000)
    assert shown(world)["entries_by_slice"] == [100, 101]
    assert shown(world)["lag_documents"] == 0
    assert nodes_to_ask(world.leader, world.index("by_city")) == ["n2", "n3"]


def test_each_copy_is_shown_and_those_that_are_being_filled() -> None:
    world = filled(CopyWorld().ready())
    world.says["n3", 0] = {**FILLING, "rows": 250, "rows_total": 1_000}
    world.now += 10_000
    world.beat()
    found = [(one["slice"], one["node"], one["copy"], one["counted"], one["state"]) for one in slices(world)]
    assert found == [
        (0, "n1", None, True, "LIVE"),
        (0, "n3", "c20", False, "FILLING"),
        (1, "n3", None, True, "LIVE"),
        (1, "n1", None, True, "LIVE"),
    ]
    one, other, *_ = slices(world)
    assert (one["lag_documents"], one["percent"], one["source"]) == (0, None, None)
    assert (other["source"], other["percent"], other["rows_done"], other["rows_total"]) == (
        "n1",
        25.0,
        250,
        1_000,
    )
    assert other["eta_s"] == pytest.approx(30, abs=0.2)
    assert shown(world)["copies"] == {
        "wanted": 4,
        "counted": 3,
        "serving": 3,
        "filling": 1,
        "lost": 0,
        "leaving": 0,
    }
    assert shown(world)["entries"] == 201


def test_a_copy_that_was_filled_is_known_by_its_id() -> None:
    world = CopyWorld().ready()
    index = world.leader.dictionary.catalog.index(INDEX)
    assert index is not None
    world.leader.dictionary.put(replace(index, copies={0: {"n2": "c20"}}))
    world.beat()
    assert [one["state"] for one in slices(world)][:2] == ["LIVE", None]
    world.says["n2", 0] = {"copy": "c20"}
    world.beat()
    assert [(one["copy"], one["state"]) for one in slices(world)][:2] == [(None, "LIVE"), ("c20", "LIVE")]


def test_an_index_that_is_placed_nowhere_has_no_copies() -> None:
    world = CopyWorld()
    assert shown(world)["copies"] == {
        "wanted": 0,
        "counted": 0,
        "serving": 0,
        "filling": 0,
        "lost": 0,
        "leaving": 0,
    }
    assert (shown(world)["entries"], slices(world)) == (0, [])


# --- copies as jobs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("says", "state", "percent", "doing"),
    [
        ({"copy": ""}, "QUEUED", 0.0, "not begun"),
        ({**FILLING, "rows": 0, "rows_total": 0}, "RUNNING", 0.0, "0 rows"),
        ({**FILLING, "rows": 300, "rows_total": 1_200}, "RUNNING", 25.0, "300 of 1,200 rows"),
        ({**FILLING, "rows": 1_200, "rows_total": 1_200}, "RUNNING", 99.9, "1,200 of 1,200 rows"),
        ({"copy": "c20", **BEHIND}, "RUNNING", 99.9, "all rows are there, it reads its queue"),
        ({"copy": "c20"}, "RUNNING", 99.9, "it counts when it holds the newest snapshot that is published"),
        ({"copy": "c20", **LOST}, "RUNNING", 0.0, "LOST: its folder is gone"),
    ],
)
def test_a_copy_is_a_job(says: dict[str, Any], state: str, percent: float, doing: str) -> None:
    world = filled(CopyWorld().ready())
    world.says["n3", 0] = says
    world.beat()
    (job,) = job_views.jobs(world.leader, world.now)
    assert job == job_views.by_id(world.leader, "c20", world.now)
    assert (job["id"], job["kind"], job["indexes"], job["state"]) == ("c20", "copy", ["by_city"], state)
    assert (job["percent"], job["waiting_for"]) == (percent, "")
    assert job["detail"] == f"slice 0 on node n3, from node n1: {doing}"
    assert job["copy"] == {
        "slice": 0,
        "node": "n3",
        "source": "n1",
        "why": "wanted",
        "replaces": None,
        "part_of": None,
        "rows_done": says.get("rows"),
        "rows_total": says.get("rows_total") or None,
        "rate": None,
    }


def test_a_copy_names_the_node_that_it_waits_for() -> None:
    world = filled(CopyWorld().ready())
    world.silent = {"n1"}
    world.live(5_000)
    (job,) = job_views.jobs(world.leader, world.now)
    assert job["waiting_for"].startswith("node n1, which has said nothing for ")


def test_copies_stand_among_the_jobs_by_their_age() -> None:
    world = filled(CopyWorld().ready())
    world.now += 1_000
    world.leader.commands.start_job("verify", "by_city", world.now)
    world.now += 1_000
    world.sql("ALTER INDEX by_city SET (replicas=2)")
    world.tick()
    found = job_views.jobs(world.leader, world.now)
    assert [one["kind"] for one in found] == ["copy", "verify", "copy", "copy"]
    assert [one["copy"] is None for one in found] == [False, True, False, False]


def test_a_copy_is_not_cancelled_and_has_no_report() -> None:
    world = filled(CopyWorld().ready())
    with pytest.raises(ConflictError, match="copy of slice 0 of by_city") as caught:
        world.leader.commands.cancel_job("c20", world.now)
    assert caught.value.problem_type == "job-is-copy"
    assert "ALTER INDEX by_city SET (replicas=N)" in caught.value.next_step
    with pytest.raises(ConflictError, match="it has no report"):
        world.leader.jobs.get("c20")


# --- health -------------------------------------------------------------------------------------------------


def test_an_index_with_all_its_copies_is_well() -> None:
    assert reasons(CopyWorld().ready()) == []


def test_a_silent_node_whose_slices_others_answer_for_is_no_failure() -> None:
    world = CopyWorld().ready()
    world.silent = {"n1"}
    world.live(5_000)
    node, slices_, none = [*reasons(world, "node"), *reasons(world, "slice"), reasons(world, "index")]
    assert (node.status, slices_.status, none) == ("degraded", "degraded", [])
    assert node.reason.endswith("it is gone, stands still or is cut off, other copies answer for its slices")
    assert slices_.subject == "slices 0, 1 of by_city"
    assert slices_.reason == "1 of 2 copies answers: node n1 is silent"
    assert "replaced by one on another node" in slices_.next_step
    world.silent = {"n1", "n2"}
    world.live(5_000)
    assert {(one.subject, one.status) for one in reasons(world, "node")} == {
        ("node n1", "failing"),
        ("node n2", "failing"),
    }
    (one, other) = sorted(reasons(world, "slice"), key=lambda one: one.subject)
    assert (one.subject, one.status) == ("slice 0 of by_city", "failing")
    assert one.reason == "node n1 is silent and node n2 is silent; scans that need it fail"
    assert (other.subject, other.status) == ("slice 1 of by_city", "degraded")
    assert "only 1 indexer node is live, and 2 are needed" in other.reason
    (index,) = reasons(world, "index")
    assert index.reason == "1 of 2 slices answer nothing: scans that need them fail"


def test_a_lost_copy_is_filled_again_and_lost_slices_are_rebuilt() -> None:
    world = CopyWorld().ready()
    world.says["n2", 0] = LOST
    world.beat()
    (one,) = reasons(world)
    assert (one.status, one.subject) == ("degraded", "slice 0 of by_city")
    assert one.reason == "1 of 2 copies answers: its data on node n2 is lost: its folder is gone"
    assert one.next_step.startswith("wait: it is filled again from another copy")
    assert shown(world)["copies"]["lost"] == 1
    world.says["n1", 0] = LOST
    world.beat()
    (one,) = reasons(world, "slice")
    assert one.status == "failing"
    assert one.next_step.startswith("wait: a rebuild begins by itself")


def test_what_is_done_about_missing_copies_is_said() -> None:
    world = CopyWorld().ready()
    take_out(world, 0, "n2")
    (one,) = reasons(world)
    assert (one.status, one.reason) == ("degraded", "1 of 2 copies answers; another is to be filled")
    world.fill("c20", 0, "n3")
    (one,) = reasons(world)
    assert one.reason == "1 of 2 copies answers; another is being filled on node n3"
    assert one.next_step == "wait: `keytide job list` shows how far it is"


def test_more_copies_than_nodes_are_told() -> None:
    world = CopyWorld().ready()
    world.sql("ALTER INDEX by_city SET (replicas=3)")
    (one,) = reasons(world)
    assert (one.subject, one.status) == ("slices 0, 1 of by_city", "degraded")
    assert one.reason == "2 of 4 copies answer; only 3 indexer nodes are live, and 4 are needed"
    assert (
        one.next_step == "start an indexer node; or have fewer copies: ALTER INDEX by_city SET (replicas=2)"
    )


# --- metrics ------------------------------------------------------------------------------------------------


def test_metrics_of_copies() -> None:
    world = filled(CopyWorld().ready())
    world.says["n1", 1] = LOST
    world.beat()
    page = metrics.render(world.leader, world.now).decode()
    found = {
        kind: float(line.split()[-1])
        for kind in metrics.COPIES
        for line in page.splitlines()
        if line.startswith(f'keytide_copies_{kind}{{index="by_city"}}')
    }
    assert found == {"wanted": 4, "counted": 3, "serving": 2, "filling": 1, "lost": 1, "leaving": 0}
    assert 'keytide_index_slices{index="by_city",state="LIVE"} 2.0' in page
    assert 'keytide_index_skipped_documents{index="by_city"} 4.0' in page
    assert 'keytide_slices_lost{index="by_city"} 0.0' in page


# --- what builds wait for -----------------------------------------------------------------------------------


def waiting(world: CopyWorld) -> str:
    return str(views.build(world.leader, world.build("b8"), world.now)["waiting_for"])


def test_a_build_names_the_copies_that_it_waits_for() -> None:
    world = CopyWorld().catch_up()
    world.says["n2", 0] = {"state": "BUILDING", "number": -1}
    world.says["n1", 1] = {**BEHIND, "timestamp": world.status("n1", 1).timestamp.of({0: 100, 1: 60})}
    at_end(world, 2_000)
    assert waiting(world) == (
        "a snapshot that every slice holds: slice 0 of by_city on node n2 (BUILDING), "
        "slice 1 of by_city on node n1 (CATCHUP, 30 documents to go)"
    )
    del world.says["n1", 1]
    world.says["n2", 0] = {"state": "STOPPED", "number": -1, "reason": "its disk is full"}
    at_end(world, 1_000)
    assert waiting(world).endswith(": slice 0 of by_city on node n2 (STOPPED: its disk is full)")
    world.silent = {"n2"}
    at_end(world, 10_000)
    assert waiting(world).startswith(
        "a snapshot that every slice holds; node n2, which has said nothing for "
    )
    world.says["n2", 0] = LOST
    world.silent = set()
    at_end(world, 1_000)
    assert (world.index("by_city").state, waiting(world)) == ("READY", "")


def test_what_verifies_waits_for_no_node_whose_slices_another_one_has() -> None:
    world = CopyWorld().ready()
    job = world.leader.commands.start_job("verify", "by_city", world.now).job
    world.live(1_000)
    for silent, told in (({"n2"}, ""), ({"n1", "n2"}, "node n1, which")):
        world.silent = silent
        world.live(5_000)
        document = job_views.by_id(world.leader, job, world.now)
        assert document["state"] == "RUNNING"
        assert document["waiting_for"].startswith(told) if told else document["waiting_for"] == ""


# --- the command --------------------------------------------------------------------------------------------


def test_the_command_says_what_holds_a_queue_where_no_line_shows_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def slice_of(number: int, node: str, by: str, offset: int | None) -> dict[str, Any]:
        return {
            "slice": number,
            "node": node,
            "queue_horizon": 40,
            "queue_held_by": by,
            "queue_held_from": offset,
        }

    shows = slice_of(0, "n1", "node n1, which may need 40", 40)
    rebuilt = slice_of(1, "n1", "rebuild b9, which may need 30", 30)
    halted = [slice_of(number, name, "the index is FAILED", None) for number in (2, 3) for name in "ab"]
    looks.show_index({"name": "by_city", "slice_states": [shows, rebuilt, *halted]})
    told = " ".join(capsys.readouterr().out.split())
    assert "what holds the queue of slice 1: rebuild b9, which may need 30" in told
    assert "what holds the queue of slices 2, 3: the index is FAILED" in told
    assert "node n1, which may need 40" not in told


def test_the_command_shows_copies(capsys: pytest.CaptureFixture[str]) -> None:
    world = CopyWorld().ready()
    looks.show_index({**shown(world), "slice_states": slices(world)})
    told = " ".join(capsys.readouterr().out.split())
    assert "4 wanted, 4 counted, 4 serving, 0 filling, 0 lost, 0 leaving" in told
    assert "eta_s" not in told
    filled(world)
    world.says["n3", 0] = {**FILLING, "rows": 250, "rows_total": 1_000}
    world.now += 10_000
    world.beat()
    looks.show_index({**shown(world), "slice_states": slices(world)})
    told = " ".join(capsys.readouterr().out.split())
    assert "4 wanted, 3 counted, 3 serving, 1 filling, 0 lost, 0 leaving" in told
    assert all(word in told for word in ("c20", "FILLING", "25.0", "eta_s", "source"))
    listed("Jobs", JOB_COLUMNS)(job_views.jobs(world.leader, world.now))
    told = " ".join(capsys.readouterr().out.split())
    assert all(word in told for word in ("c20", "copy", "by_city", "RUNNING", "25.0"))
    assert "slice 0 on node n3, from node n1: 250 of 1,000 rows" in told
