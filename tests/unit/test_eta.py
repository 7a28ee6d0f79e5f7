"""The estimate of a build's end, against builds whose end is known."""

from __future__ import annotations

import pytest

from coordinator.builds.eta import LOAD_PART, SORT_PART, BuildPace

SECOND = 1_000


def play(
    pace: BuildPace, total: int, batch: int, read: float, sort: float, every: int = 500
) -> list[tuple[float | None, float]]:
    """A build that reads and sorts micro-batches at a steady pace (documents per second), without loading;
    (estimate, truth) in seconds at each report."""
    at, told, end, done = 0.0, [], 0.0, 0
    plan: list[tuple[float, float, str, int, int]] = []  # from, to, phase, documents before and after
    while done < total:
        size = min(batch, total - done)
        plan += [(end, end + size / read, "reading", done, done + size)]
        plan += [(end + size / read, end + size / read + size / sort, "sorting", done, done + size)]
        end, done = plan[-1][1], done + size
    while at < end:
        begin, until, phase, before, after = next(one for one in plan if one[0] <= at < one[1])
        documents = after
        if phase == "reading":
            documents = before + int((after - before) * (at - begin) / (until - begin))
        pace.report(int(at * SECOND) + 1, phase, documents, before)
        left = pace.left_ms(int(at * SECOND) + 1, documents, total)
        told.append((None if left is None else left / SECOND, end - at))
        at += every / SECOND
    return told


def test_nothing_is_said_before_anything_was_seen() -> None:
    pace = BuildPace()
    assert pace.left_ms(0, 0, 1_000) is None
    pace.report(1_000, "reading", 0, 0)
    assert pace.left_ms(1_000, 0, 1_000) is None
    pace.report(2_000, "reading", 500, 0)
    assert pace.left_ms(2_000, 500, 1_000) is None, "one second is no measure"


def test_a_build_of_many_micro_batches_is_foretold_after_the_first() -> None:
    told = play(BuildPace(), total=400_000, batch=40_000, read=10_000, sort=20_000)
    for estimate, truth in told[20:]:
        assert estimate is not None
        # Loading of the last micro-batch is in the estimate, and not in this build.
        assert abs(estimate - truth) <= 0.1 * truth + 3


def test_the_end_of_reading_is_not_the_end() -> None:
    """One micro-batch: when the last document is read, sorting is still to come."""
    told = play(BuildPace(), total=100_000, batch=100_000, read=10_000, sort=20_000)
    estimate, truth = told[19]
    assert truth == pytest.approx(5.5)
    assert estimate is not None
    assert 0.7 * truth <= estimate <= 2 * truth


def test_sorting_counts_down() -> None:
    pace = BuildPace()
    pace.report(1_000, "reading", 0, 0)
    pace.report(11_000, "reading", 10_000, 0)
    pace.report(11_100, "sorting", 10_000, 0)
    first, then = pace.left_ms(11_100, 10_000, 10_000), pace.left_ms(13_100, 10_000, 10_000)
    assert first is not None
    assert then is not None
    assert first - then == pytest.approx(2_000, rel=0.01)
    assert pace.left_ms(60_000, 10_000, 10_000) == pytest.approx(LOAD_PART * 10_100, rel=0.01)
    assert first == pytest.approx((SORT_PART + LOAD_PART) * 10_100, rel=0.01)


def test_a_limit_is_not_believed_to_be_exceeded_and_a_new_one_begins_anew() -> None:
    pace = BuildPace()
    pace.report(1_000, "reading", 0, 0)
    pace.report(11_000, "reading", 10_000, 0)
    free, held = pace.left_ms(11_000, 10_000, 20_000), pace.left_ms(11_000, 10_000, 20_000, rate_limit=100)
    assert free is not None
    assert held is not None
    assert held > 90 * SECOND > free
    pace.forget()
    assert pace.left_ms(11_000, 10_000, 20_000) is None


def test_time_without_reports_of_reading_is_no_reading() -> None:
    """Between two looks the driver slept, sorted, or was away."""
    pace = BuildPace()
    for second in range(10):
        pace.report(second * SECOND + 1, "reading", 1_000 * second, 0)
    pace.report(10 * SECOND, "sorting", 10_000, 0)
    pace.report(70 * SECOND, "reading", 10_000, 10_000)
    assert pace.read_pace() == pytest.approx(1.0, rel=0.05)
