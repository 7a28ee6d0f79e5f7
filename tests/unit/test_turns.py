"""Whose request is begun next: by turns of clients, so many wait at most, and whoever has most gives way."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keytide.serving.turns import AT_ONCE, OverloadedError, Turns


class Crowd:
    """Clients that ask, and in which order they are begun."""

    def __init__(self, most: int) -> None:
        self.turns = Turns(most)
        self.begun: list[str] = []
        self.refused: Counter[str] = Counter()
        self._tasks: list[asyncio.Task[None]] = []

    async def _ask(self, client: str) -> None:
        try:
            await self.turns.take(lambda: client)
        except OverloadedError:
            self.refused[client] += 1
            return
        self.begun.append(client)

    def ask(self, client: str, times: int = 1) -> list[asyncio.Task[None]]:
        """So many requests that come now."""
        made = [asyncio.get_running_loop().create_task(self._ask(client)) for _ in range(times)]
        self._tasks += made
        return made

    async def over(self) -> None:
        """Wait until all are begun, or refused."""
        await asyncio.gather(*self._tasks, return_exceptions=True)


def run(story: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await story

    asyncio.run(limited())


def test_few_are_begun_at_once_and_who_they_are_is_not_asked() -> None:
    async def story() -> None:
        turns = Turns(1)
        for _ in range(3):
            for _ in range(AT_ONCE):
                await turns.take(lambda: pytest.fail("nobody has to wait"))
            await asyncio.sleep(0)  # one pass of the loop
            await asyncio.sleep(0)

    run(story())


def test_not_more_than_so_many_are_begun_in_one_pass_of_the_loop() -> None:
    async def story() -> None:
        crowd, seen = Crowd(1_000), 0
        crowd.ask("a", 200)
        while len(crowd.begun) < 200:
            await asyncio.sleep(0)
            assert len(crowd.begun) - seen <= AT_ONCE
            seen = len(crowd.begun)
        assert not crowd.refused

    run(story())


def test_a_client_with_one_request_does_not_wait_behind_those_of_another() -> None:
    async def story() -> None:
        crowd = Crowd(1_000)
        crowd.ask("many", 500)
        crowd.ask("one")
        await crowd.over()
        assert crowd.begun.index("one") <= AT_ONCE + 1
        assert crowd.begun.count("many") == 500

    run(story())


def test_when_there_is_no_room_the_one_with_most_of_them_is_refused() -> None:
    async def story() -> None:
        crowd = Crowd(50)
        crowd.ask("many", 500)
        crowd.ask("few", 20)
        await crowd.over()
        assert crowd.refused == {"many": 500 + 20 - AT_ONCE - 50}
        assert crowd.begun.count("few") == 20

    run(story())


def test_what_the_cluster_asks_is_never_refused_and_takes_half_of_what_is_begun() -> None:
    async def story() -> None:
        crowd, order = Crowd(50), list[str]()

        async def ask_for_cluster() -> None:
            await crowd.turns.take_for_cluster()
            order.append("cluster")
            crowd.begun.append("cluster")

        crowd.ask("many", AT_ONCE + 50)
        parts = [asyncio.get_running_loop().create_task(ask_for_cluster()) for _ in range(300)]
        crowd.ask("many", 10)
        await crowd.over()
        await asyncio.gather(*parts)
        assert crowd.refused == {"many": 10}
        first = Counter(crowd.begun[AT_ONCE : 3 * AT_ONCE])
        assert first == {"cluster": AT_ONCE, "many": AT_ONCE}
        assert len(order) == 300

    run(story())


def test_who_is_alone_is_refused_what_comes_last() -> None:
    async def story() -> None:
        crowd = Crowd(5)
        tasks = crowd.ask("a", AT_ONCE + 5)
        late = crowd.ask("a", 3)
        await crowd.over()
        assert crowd.refused == {"a": 3}
        assert all(one.done() for one in (*tasks, *late))
        assert crowd.turns.waiting == 0

    run(story())


def test_who_goes_away_while_it_waits_takes_no_turn() -> None:
    async def story() -> None:
        crowd = Crowd(100)
        gone = crowd.ask("a", AT_ONCE + 30)[AT_ONCE:]
        crowd.ask("b", 5)
        await asyncio.sleep(0)
        for one in gone:
            one.cancel()
        await crowd.over()
        assert Counter(crowd.begun) == {"a": AT_ONCE, "b": 5}
        assert crowd.turns.waiting == 0

    run(story())


def test_what_waits_on_a_loop_that_has_ended_is_in_nobodys_way() -> None:
    turns = Turns(3)

    async def left() -> None:
        asking = [asyncio.get_running_loop().create_task(turns.take(lambda: "a")) for _ in range(AT_ONCE + 3)]
        await asyncio.sleep(0)
        for one in asking:
            one.cancel()

    async def after() -> None:
        await asyncio.gather(*(turns.take(lambda: "b") for _ in range(AT_ONCE + 3)))

    asyncio.run(left())
    run(after())
    assert turns.waiting == 0


@settings(deadline=None)
@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 30), st.booleans()), min_size=1, max_size=8),
)
def test_everybody_is_begun_or_refused_once_and_by_turns(
    most: int, arrivals: list[tuple[str, int, bool]]
) -> None:
    async def story() -> None:
        crowd, asked = Crowd(most), Counter[str]()
        for client, times, pause in arrivals:
            crowd.ask(client, times)
            asked[client] += times
            if pause:
                await asyncio.sleep(0)
            assert crowd.turns.waiting <= most
        await crowd.over()
        assert Counter(crowd.begun) + crowd.refused == asked
        assert crowd.turns.waiting == 0
        if most >= len(asked):  # then there is room for one of each, and who has only one is not refused it
            assert all(crowd.begun.count(client) for client in asked)

    run(story())


def test_each_pass_takes_one_of_each_client_before_a_second_one() -> None:
    async def story() -> None:
        crowd = Crowd(1_000)
        for client in "abcd":
            crowd.ask(client, 40)
        await crowd.over()
        waited: defaultdict[str, int] = defaultdict(int)
        for client in crowd.begun[AT_ONCE : AT_ONCE + 60]:  # (of the first ones nobody had to wait)
            waited[client] += 1
        assert max(waited.values()) - min(waited[client] for client in "bcd") <= 1

    run(story())
