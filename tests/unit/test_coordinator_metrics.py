"""What the coordinator's metrics say of verifications. (Others: with what they measure.)"""

from __future__ import annotations

from coordinator.http import metrics
from tests.unit.leader_world import World
from tests.unit.test_jobs import ready, report, verify


def lines(world: World, name: str) -> list[str]:
    page = metrics.render(world.leader, world.now).decode()
    return [line for line in page.splitlines() if line.startswith(f"{name}{{")]


def test_what_the_last_verification_found_and_when_it_ended() -> None:
    world = ready()
    assert lines(world, "keytide_verify_finished_timestamp_seconds") == []
    ended = 0.0
    for counts, found in (
        (
            {"EXTRA": 2, "UNPROVABLE": 1},
            [
                'keytide_verify_differences{class="EXTRA",index="by_city"} 2.0',
                'keytide_verify_differences{class="UNPROVABLE",index="by_city"} 1.0',
            ],
        ),
        ({}, []),
    ):
        job = verify(world)
        world.tick(2_000)
        before = lines(world, "keytide_verify_finished_timestamp_seconds")
        report(world, job, counts={"MISSING": 9})
        assert lines(world, "keytide_verify_finished_timestamp_seconds") == before, "it is not over"
        report(world, job, "DONE", counts=counts)
        assert lines(world, "keytide_verify_differences") == found
        (line,) = lines(world, "keytide_verify_finished_timestamp_seconds")
        assert line.startswith('keytide_verify_finished_timestamp_seconds{index="by_city"} ')
        assert float(line.split()[-1]) == world.now / 1000 > ended
        ended = world.now / 1000
