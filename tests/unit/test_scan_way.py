"""The way of a scan stays short: through how many modules a first page, a next page and a count go, from the
application to the seam (`indexer.view`); and what nodes send each other stays what it was."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import httpx
import pytest

from indexer.scan.peer.messages import ReadMessage, encoder, read_decoder
from keytide.settings.settings import load_settings
from tests.unit.scan_world import World
from tests.unit.test_api import COUNT, Endpoint, serving, world_of_cities

MOST_MODULES = {(1, 1): (12, 12), (2, 1): (18, 20), (2, 2): (15, 18), (3, 2): (21, 23)}
"""(nodes, copies of each slice) -> modules on the node that is asked, and on all nodes. Of two nodes with two
copies each has all slices; of three nodes each lacks one, which another one is asked for."""
TRIES = 3
"""On a machine that is busy a read may take so long that it goes on in a thread, by another module."""


class Trace:
    """Modules of `indexer`, before the seam, whose functions are called while a request is answered: by the
    thread that asks, where the first node answers, and by any, of its pools and of the other nodes."""

    def __init__(self) -> None:
        self._here: set[str] = set()
        self._everywhere: set[str] = set()
        self._asks = threading.get_ident()

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("indexer.") and not name.startswith("indexer.store."):
            self._everywhere.add(name)
            if threading.get_ident() == self._asks:
                self._here.add(name)

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Threads that are started meanwhile are looked at."""
        threading.setprofile(self._note)
        try:
            yield
        finally:
            threading.setprofile(None)

    def of(self, ask: Callable[[], httpx.Response]) -> tuple[set[str], set[str]]:
        self._here, self._everywhere = set(), set()
        sys.setprofile(self._note)
        try:
            response = ask()
        finally:
            sys.setprofile(None)
        assert response.status_code == 200, response.text
        return self._here, self._everywhere


@contextmanager
def other_nodes(world: World) -> Iterator[None]:
    """All nodes but the first, behind real servers."""
    with ExitStack() as stack:
        for name, view in list(world.views.items())[1:]:
            url = stack.enter_context(serving(view, load_settings()))
            for other in world.views.values():
                other.urls[name] = url
        yield


@pytest.mark.parametrize("later", [False, True], ids=["the first of its session", "a later one"])
@pytest.mark.parametrize(("nodes", "copies"), MOST_MODULES)
def test_pages_and_counts_go_through_few_modules(nodes: int, copies: int, later: bool) -> None:
    world, trace = world_of_cities(nodes, copies - 1), Trace()
    with trace.threads(), other_nodes(world), Endpoint(world) as endpoint:
        page = endpoint.post(limit=3).json()
        more: dict[str, Any] = {"session": page["session"], "at_least": page["timestamp"]} if later else {}
        ways: dict[str, Callable[[], httpx.Response]] = {
            "first page": lambda: endpoint.post(limit=3, **more),
            "next page": lambda: endpoint.post(page=page["page"]),
            "count": lambda: endpoint.post(COUNT, **more),
            "count of a span": lambda: endpoint.post(COUNT, equals=["Bonn"], **more),
        }
        for name, ask in ways.items():
            found = min((trace.of(ask) for _ in range(TRIES)), key=lambda sets: (len(sets[1]), len(sets[0])))
            read = "joint" if "page" in name and copies == nodes else "reader"
            assert f"indexer.scan.local.{read}" in found[0], f"{name}: nothing was traced"
            for modules, most in zip(found, MOST_MODULES[nodes, copies], strict=True):
                assert len(modules) <= most, f"{name}: {', '.join(sorted(modules))}"


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
