"""The way of a scan stays short: through how many modules a first page, a next page and a count go, from the
application to the seam (`indexer.view`); and what nodes send each other stays what it was."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import httpx
import pytest

from indexer.scan.peer.messages import ReadMessage, encoder, read_decoder
from tests.unit.test_api import COUNT, Endpoint, world_of_cities

MOST_MODULES = 12
TRIES = 3
"""On a machine that is busy a read may take so long that it goes on in a thread, by another module."""


def modules_of(ask: Callable[[], httpx.Response]) -> Counter[str]:
    """Module of `indexer`, before the seam -> calls of its functions while a request is answered, in all
    threads."""
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("indexer.") and not name.startswith("indexer.store."):
            calls[name] += 1

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        response = ask()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert response.status_code == 200, response.text
    return calls


@pytest.mark.parametrize("later", [False, True], ids=["the first of its session", "a later one"])
def test_pages_and_counts_go_through_a_dozen_modules_at_most(later: bool) -> None:
    with Endpoint(world_of_cities()) as endpoint:
        page = endpoint.post(limit=3).json()
        more: dict[str, Any] = {"session": page["session"], "at_least": page["timestamp"]} if later else {}
        ways: dict[str, Callable[[], httpx.Response]] = {
            "first page": lambda: endpoint.post(limit=3, **more),
            "next page": lambda: endpoint.post(page=page["page"]),
            "count": lambda: endpoint.post(COUNT, **more),
            "count of a span": lambda: endpoint.post(COUNT, equals=["Bonn"], **more),
        }
        for name, ask in ways.items():
            calls = min((modules_of(ask) for _ in range(TRIES)), key=len)
            read = "joint" if "page" in name else "reader"
            assert f"indexer.scan.local.{read}" in calls, f"{name}: nothing was traced"
            assert len(calls) <= MOST_MODULES, f"{name}: {', '.join(sorted(calls))}"


@pytest.mark.parametrize(
    ("message", "sent"),
    [
        (
            ReadMessage(
                "i",
                5,
                1,
                [0, 2],
                [(b"a", b"b"), (b"c", None)],
                [b"", b"k"],
                True,
                7,
                900,
                True,
                True,
                b"{}",
                True,
                3,
                True,
                "h",
                "t",
                b"x",
                11,
                "me",
                4,
                {0: 5, 1: 6},
            ),
            "dc0016a16905019200029292c40161c4016292c40163c092c400c4016bc307cd0384c3c3c4027b7dc303c3a168a174c40178"
            "0ba26d65048200050106",
        ),
        (
            ReadMessage("i", 5, 1, [0], [(b"", None)], [b""], False, 101, within_ms=2_900),
            "dc0016a169050191009192c400c091c400c26500c2c2c400c200c2a0a0c400cd0b54a0ff80",
        ),
    ],
    ids=["every member", "a plain page"],
)
def test_a_read_is_sent_as_it_always_was(message: ReadMessage, sent: str) -> None:
    """The bytes were written by the release before requests were divided by kind."""
    assert encoder.encode(message).hex() == sent
    request = read_decoder.decode(bytes.fromhex(sent)).request()
    assert encoder.encode(ReadMessage.of(request)).hex() == sent
