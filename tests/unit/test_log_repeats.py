"""A log that is not filled by one thing said again and again."""

from __future__ import annotations

import logging

from keytide.kafka.admin import log as admin_log
from keytide.kafka.log_repeats import EVERY_S, Repeats
from keytide.kafka.topics import log as kafka_log


def said(repeats: Repeats, text: str) -> str | None:
    record = logging.LogRecord("kafka", logging.ERROR, "", 0, "%s", (text,), None)
    return record.getMessage() if repeats.filter(record) else None


def test_one_of_a_kind_passes_in_a_while_and_tells_of_the_others() -> None:
    now = 0.0
    repeats = Repeats(10, lambda: now)
    assert said(repeats, "consumer-1 refused (after 0ms)") == "consumer-1 refused (after 0ms)"
    for number in range(500):
        assert said(repeats, f"consumer-{number} refused (after {number}ms)") is None
    assert said(repeats, "consumer-1 is gone") == "consumer-1 is gone"
    now = 10.0
    assert said(repeats, "consumer-7 refused (after 3ms)") == (
        "consumer-7 refused (after 3ms) (and 500 more like it)"
    )
    now = 20.0
    assert said(repeats, "consumer-7 refused (after 3ms)") == "consumer-7 refused (after 3ms)"


def test_what_librdkafka_says_goes_through_it() -> None:
    for log in (kafka_log, admin_log):
        assert any(isinstance(one, Repeats) for one in log.filters)
    assert EVERY_S >= 1
