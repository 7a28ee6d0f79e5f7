"""Parts of messages that are larger than one Kafka message may be (R20)."""

from __future__ import annotations

import pytest

from keytide.wire.messages import BuildEnd, encode
from keytide.wire.parts import Assembler, split

MESSAGE = BuildEnd("b" * 300, "i", 0, 1, 2)


@pytest.mark.parametrize(
    "order", [(0, 1, 2, 3), (0, 0, 1, 1, 2, 2, 3), (0, 1, 0, 1, 2, 1, 3), (1, 0, 2, 0, 1, 2, 3)]
)
def test_parts_come_together_however_often_they_are_copied(order: tuple[int, ...]) -> None:
    parts = split(encode(MESSAGE), 100, "s", 7)
    assert len(parts) == 4
    assembler = Assembler()
    found = [whole for at, part in enumerate(order) if (whole := assembler.feed(parts[part], at))]
    assert [message for message, _ in found] == [MESSAGE]
    assert assembler.first_pending() is None


def test_a_lost_part_loses_its_message_only() -> None:
    assembler = Assembler()
    parts = split(encode(MESSAGE), 100, "s", 7)
    assert [assembler.feed(parts[n], n) for n in (0, 2, 3)] == [None] * 3
    again = split(encode(MESSAGE), 100, "s", 8)
    assert [assembler.feed(part, 10 + n) for n, part in enumerate(again)][-1] == (MESSAGE, 10)


def test_parts_of_an_older_message_that_are_late_change_nothing() -> None:
    """A producer that failed for good has a successor, and what it had sent arrives among that one's."""
    older, newer = split(encode(MESSAGE), 100, "s", 7), split(encode(MESSAGE), 100, "s", 8)
    for late in older:
        assembler = Assembler()
        arrived = [older[0], *newer[:2], late, *newer[2:]]
        assert [assembler.feed(part, at) for at, part in enumerate(arrived)][-1] == (MESSAGE, 1)


def test_senders_do_not_mix() -> None:
    assembler = Assembler()
    one, other = split(encode(MESSAGE), 200, "s", 7), split(encode(MESSAGE), 200, "t", 7)
    assert [assembler.feed(data, at) for at, data in enumerate((one[0], other[0], other[1], one[1]))] == [
        None,
        None,
        (MESSAGE, 1),
        (MESSAGE, 0),
    ]
