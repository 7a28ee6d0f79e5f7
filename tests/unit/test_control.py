"""What a node keeps of the control topic across rollbacks: one history, never two."""

from __future__ import annotations

import msgspec

from indexer.hosting.core.control import Control
from keytide.catalog.history import History
from keytide.catalog.records import RollbackRecord
from keytide.model.timestamp import Timestamp
from keytide.wire.messages import Published, StabilityTimestamp, decode, encode


def history(*numbers: int) -> History:
    """Rollbacks to these numbers, one after the other; offset n is in snapshot n."""
    return History(
        RollbackRecord("ks", at + 1, number, Timestamp.of({0: max(0, number)}), "t", "truncated", 0)
        for at, number in enumerate(numbers)
    )


def stamp(incarnation: int, number: int, keyspace: str = "ks") -> StabilityTimestamp:
    return StabilityTimestamp(keyspace, 1, incarnation, Timestamp.of({0: number}), 5, 5)


def test_a_rollback_voids_what_lies_past_its_snapshot_and_nothing_else() -> None:
    control = Control()
    for number in (3, 5, 9):
        assert control.stamped(number, stamp(0, number))
        assert control.stamped(number + 1, stamp(0, number, "other"))
    control.publish(Published("ks", 1, 0, {"old": 5, "new": 9}))
    control.publish(Published("other", 1, 0, {"far": 10}))
    control.show_history("ks", history(5))
    assert [control.stamp("ks", number) is not None for number in (3, 5, 9)] == [True, True, False]
    assert control.stamp("other", 10) is not None
    assert (control.published("old"), control.published("new"), control.published("far")) == (5, None, 10)


def test_only_messages_of_the_dictionary_s_incarnation_count() -> None:
    control = Control()
    assert control.stamped(4, stamp(0, 4))
    assert not control.stamped(7, stamp(1, 4)), "the dictionary has not told of the rollback yet"
    assert control.publish(Published("ks", 1, 1, {"i": 7})) == {}
    control.show_history("ks", history(4))
    assert not control.stamped(8, stamp(0, 8)), "a leader's last words from before it"
    assert control.publish(Published("ks", 1, 0, {"i": 8})) == {}
    assert control.stamped(9, stamp(1, 4))
    assert control.publish(Published("ks", 1, 1, {"i": 9})) == {"i": 9}
    assert control.stamp("ks", 9) == (1, Timestamp.of({0: 4}), 5)
    assert control.stamp("ks", 7) is None
    assert control.stamp("ks", 8) is None


def test_two_rollbacks_at_once() -> None:
    control = Control()
    for number in range(1, 9):
        control.stamped(number, stamp(0, number))
    control.publish(Published("ks", 1, 0, {"i": 6}))
    control.show_history("ks", history(7, 4))
    assert [number for number in range(1, 9) if control.stamp("ks", number)] == [1, 2, 3, 4]
    assert control.published("i") is None
    assert not control.stamped(10, stamp(1, 7))
    assert control.stamped(11, stamp(2, 4))


def test_who_is_behind_is_what_the_newest_word_says() -> None:
    control = Control()
    behind = {"n1": {"i": [0, 2]}, "n2": {"i": [0]}}
    control.publish(Published("ks", 1, 0, {"i": 6}, behind))
    control.publish(Published("other", 1, 0, {"j": 6}, {"n3": {"j": [0]}}))
    assert [set(control.behind("i", number)) for number in range(3)] == [{"n1", "n2"}, set(), {"n1"}]
    control.publish(Published("ks", 1, 1, {"i": 8}))
    assert control.behind("i", 2) == {"n1"}, "of a rollback that the dictionary does not show yet"
    control.publish(Published("ks", 2, 0, {"i": 6}))
    assert (control.behind("i", 0), control.behind("j", 0)) == (frozenset(), frozenset({"n3"}))
    control.publish(Published("ks", 1, 0, {"i": 6}, behind))
    assert control.behind("i", 0) == set(), "a leader that is one no more"


def test_a_release_that_does_not_say_who_is_behind_is_understood() -> None:
    said = Published("ks", 1, 0, {"i": 6}, {"n1": {"i": [0]}})
    assert decode(encode(said)) == said
    fields = msgspec.msgpack.decode(encode(said)[1:])
    older = encode(said)[:1] + msgspec.msgpack.encode(fields[:-1])
    assert decode(older) == Published("ks", 1, 0, {"i": 6})


def test_a_topic_made_anew_voids_everything() -> None:
    control = Control()
    control.stamped(0, stamp(0, 0))
    control.publish(Published("ks", 1, 0, {"i": 0}))
    control.show_history("ks", history(-1))
    assert control.stamp("ks", 0) is None
    assert control.published("i") is None
