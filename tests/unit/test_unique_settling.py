"""Which number a timestamp settles (R35)."""

from coordinator.core.source_status import SourceStatus
from coordinator.unique.settlement import ISSUES_KEPT, SAMPLES_KEPT, Settling
from keytide.model.timestamp import Timestamp


def facts(at: int, **high: int) -> SourceStatus:
    ends = {int(name[1:]): end for name, end in high.items()}
    return SourceStatus("ks", "t", {}, dict.fromkeys(ends, 0), ends, False, 0, 0, at)


def at(*offsets: int) -> Timestamp:
    return Timestamp.of(dict(enumerate(offsets)), "t")


def test_nothing_is_settled_before_a_sample_is_covered() -> None:
    settling = Settling()
    assert settling.by(at(9, 9)) == -1
    settling.issued(100, 7)
    assert settling.by(at(9, 9)) == -1
    settling.sampled(facts(101, p0=5, p1=6))
    assert settling.by(at(5, 5)) == -1
    assert settling.by(at(4, 6)) == -1
    assert settling.by(at(5, 6)) == 7
    assert settling.by(at(5, 6)) == 7


def test_what_was_issued_while_the_sample_was_taken_is_not_settled_by_it() -> None:
    settling = Settling()
    settling.issued(100, 7)
    settling.issued(101, 8)
    settling.issued(102, 9)
    settling.sampled(facts(101, p0=5))
    assert settling.by(at(5)) == 7
    settling.sampled(facts(103, p0=5))
    assert settling.by(at(5)) == 9


def test_ends_are_high_watermarks_so_that_open_transactions_count() -> None:
    settling = Settling()
    settling.issued(100, 7)
    settling.sampled(facts(101, p0=5))  # its stable end is 0
    assert settling.by(at(4)) == -1
    assert settling.by(at(5)) == 7


def test_a_partition_that_the_timestamp_does_not_know_yet_is_not_covered() -> None:
    settling = Settling()
    settling.issued(100, 7)
    settling.sampled(facts(101, p0=5, p1=1))
    assert settling.by(at(5)) == -1


def test_a_source_that_does_not_exist_settles_nothing() -> None:
    settling = Settling()
    settling.issued(100, 7)
    settling.sampled(SourceStatus("ks", "", {}, {}, {}, False, 0, 0, 101))
    assert settling.by(at(5)) == -1


def test_samples_that_nothing_covers_yet_are_limited_and_settle_in_order() -> None:
    settling = Settling()
    for number in range(10 * SAMPLES_KEPT):
        settling.issued(2 * number, number)
        settling.sampled(facts(2 * number + 1, p0=number))
    assert len(settling._samples) <= SAMPLES_KEPT
    assert settling.by(at(0)) == 0  # the oldest has stayed
    assert 0 < settling.by(at(319 - 1)) < 319
    last = 10 * SAMPLES_KEPT - 1
    assert settling.by(at(last)) == last
    for number in range(2 * ISSUES_KEPT):
        settling.issued(10_000 + number, 1_000 + number)
    assert len(settling._issued) == ISSUES_KEPT
