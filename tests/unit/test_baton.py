"""Long work gives way: one thread at a time, in turn, and resting while short requests are about."""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from indexer.scan.local.effort import HELD_S, OTHERS_S, PART_S, REST_S, FairLock, ReadBudget, ReadThreads
from tests.waiting import wait_for

LIMIT_S = 20.0


def test_it_is_handed_over_in_the_order_of_those_who_wait() -> None:
    baton, got = FairLock(), []
    baton.take()

    def wait_for_it(number: int) -> None:
        baton.take()
        got.append(number)
        baton.give()

    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=wait_for_it, args=(number,)))
        threads[-1].start()
        wait_for(lambda: len(baton._waiting) == number + 1)  # noqa: B023 - called before the next number
    assert got == []
    baton.give()
    for thread in threads:
        thread.join(LIMIT_S)
    assert got == [0, 1, 2, 3, 4]


def test_who_has_it_may_take_it_again_and_who_has_it_not_gives_nothing() -> None:
    baton, took = FairLock(), threading.Event()
    baton.take()
    baton.take()

    def other() -> None:
        baton.give()
        baton.take()
        took.set()
        baton.give()

    thread = threading.Thread(target=other)
    thread.start()
    assert not took.wait(0.05)
    baton.give()
    assert took.wait(LIMIT_S)
    thread.join(LIMIT_S)


def work_a_part() -> None:
    """Take so much of the processor that a rest is due."""
    ends = time.thread_time() + PART_S
    while time.thread_time() < ends:
        pass


def working(threads: ReadThreads, workers: int, parts: int, look: Callable[[], None]) -> float:
    """Have threads do some parts of long work each; seconds that it took."""

    def work() -> None:
        pace = ReadBudget(threads=threads)
        for _ in pace.parts(range(parts * 64)):
            look()

    began = time.monotonic()
    turns = [threads._threads.submit(threads._run, work, ()) for _ in range(workers)]
    for turn in turns:
        turn.result(LIMIT_S)
    return time.monotonic() - began


def test_long_work_is_done_by_one_thread_at_a_time_and_each_gets_on() -> None:
    threads, at_work, most = ReadThreads(), 0, 0
    lock = threading.Lock()

    def look() -> None:
        nonlocal at_work, most
        threads.short_at = time.monotonic()
        with lock:
            at_work += 1
            most = max(most, at_work)
        time.sleep(0.0005)
        with lock:
            at_work -= 1

    threads.short_at = time.monotonic()
    working(threads, 4, 20, look)
    assert most == 1
    threads.close()


def test_it_rests_while_short_requests_are_about_and_not_else(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = ReadThreads()
    rests: list[float] = []

    def look() -> None:
        threads.short_at = time.monotonic()
        work_a_part()

    monkeypatch.setattr("indexer.scan.local.effort.time.sleep", rests.append)
    working(threads, 2, 10, look)
    assert rests.count(REST_S) >= 2
    rests.clear()
    threads.short_at -= OTHERS_S
    working(threads, 2, 10, work_a_part)
    assert rests == []
    threads.close()


def test_who_has_hardly_worked_does_not_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small slices, each looked at once: what takes a millisecond in all is not made to take thirty."""
    threads = ReadThreads()
    rests: list[float] = []
    cpu = 0.0
    monkeypatch.setattr("indexer.scan.local.effort.time.sleep", rests.append)
    monkeypatch.setattr("indexer.scan.local.effort.thread_time", lambda: cpu)
    effort = ReadBudget(threads=threads)
    for _ in range(10):
        threads.short_at = time.monotonic()
        effort.look()
        cpu += PART_S / 10
    assert len(rests) == 1
    threads.close()


def test_while_nobody_else_is_about_threads_take_turns() -> None:
    threads = ReadThreads()
    worked: list[int] = []
    meet = threading.Barrier(2)

    def work() -> None:
        effort = ReadBudget(threads=threads)
        meet.wait(LIMIT_S)
        for _ in range(60):
            effort.look()
            worked.append(threading.get_ident())
            time.sleep(HELD_S / 5)

    began = time.monotonic()
    turns = [threads._threads.submit(threads._run, work, ()) for _ in range(2)]
    for turn in turns:
        turn.result(LIMIT_S)
    changes = sum(one != other for one, other in itertools.pairwise(worked))
    assert 4 < changes <= 2 + (time.monotonic() - began) / HELD_S
    threads.close()


def test_what_is_run_while_nobody_else_is_about_goes_side_by_side() -> None:
    threads = ReadThreads()
    meet = threading.Barrier(2)
    turns = [threads._threads.submit(threads._run, meet.wait, (LIMIT_S,)) for _ in range(2)]
    assert sorted(turn.result(LIMIT_S) for turn in turns) == [0, 1]
    threads.close()


def test_shapes_that_are_made_ready_keep_nobody_from_reading() -> None:
    """One that took seconds held the baton, and four all of the threads."""
    threads, made = ReadThreads(), threading.Event()

    async def beside() -> list[int]:
        threads.short_at = time.monotonic()
        shapes = [asyncio.ensure_future(threads.prepare(made.wait, LIMIT_S)) for _ in range(8)]
        await asyncio.sleep(0.05)
        threads.short_at = time.monotonic()
        turn = threads.turn(lambda effort: [len(one) for one in effort.parts("abc")], LIMIT_S, first=True)
        read = await asyncio.wait_for(turn.result(), LIMIT_S / 2)
        made.set()
        assert all(await asyncio.gather(*shapes))
        return read

    try:
        assert asyncio.run(beside()) == [3]
    finally:
        made.set()
        threads.close()


def test_rests_are_not_of_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = ReadThreads()
    now, rests = 100.0, 0

    def rest(seconds: float) -> None:
        nonlocal now, rests
        now += seconds
        rests += 1

    for name, value in {"monotonic": lambda: now, "thread_time": lambda: now, "time.sleep": rest}.items():
        monkeypatch.setattr(f"indexer.scan.local.effort.{name}", value)
    turn_s, parts = 0.2, 200
    effort = ReadBudget(math.inf, turn_s, turn_s, threads)
    for _ in range(parts):
        threads.short_at = now
        now += PART_S
        effort.look()
    assert rests * REST_S > turn_s
    assert [effort.spent] == [False]
    now += turn_s - parts * PART_S + 0.001
    assert [effort.spent] == [True]
    monkeypatch.undo()
    threads.close()


def test_what_is_loaded_is_out_of_the_reach_of_the_collector() -> None:
    code = "import gc, keytide.process.program as it\nit.spare_collections(7)\n"
    code += "print(gc.get_freeze_count(), *gc.get_threshold())"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    frozen, young, *_ = map(int, said.split())
    assert frozen > 1_000
    assert young == 7
    assert gc.isenabled()
