"""One way that a thread begins, fails, is asked to stop and ends."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from indexer.serve import process
from indexer.store.lmdb.levels import Level
from keytide.process.worker import QueueWorker, Worker, logged
from keytide.settings.settings import load_settings
from tests.store_kit import SMALL
from tests.waiting import wait_for

LIMIT_S = 10.0


class Jobs(QueueWorker[Callable[[], None]]):
    """Calls what it is given."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        super().__init__("jobs", failed)
        self.ended = 0
        self.looked = threading.Event()

    def _carry_out(self, job: Callable[[], None]) -> None:
        job()

    def _patience_s(self) -> float | None:
        return 0.01

    def _look_around(self) -> None:
        self.looked.set()

    def _end(self) -> None:
        self.ended += 1


def test_an_error_is_handed_on_and_ends_the_thread() -> None:
    failures: list[BaseException] = []
    error = OSError("a disk")

    def work() -> None:
        raise error

    one = Worker("one", failures.append, work)
    one.open()
    assert one.close(LIMIT_S)
    assert failures == [error]
    with pytest.raises(OSError, match="a disk"):
        one.check()


def test_a_failure_that_nobody_asks_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def work() -> None:
        raise OSError("a disk")

    one = Worker("one", logged, work)
    one.open()
    assert one.wait(LIMIT_S)
    assert "the thread one has failed" in caplog.text
    assert "a disk" in caplog.text


def test_it_can_be_waited_for_without_being_asked_to_stop() -> None:
    go = threading.Event()

    def work() -> None:
        assert go.wait(LIMIT_S)

    assert not Worker("none", None, work).running, "it has not begun"
    one = Worker("one", None, work)
    one.open()
    assert not one.wait(0.01)
    assert one.running
    go.set()
    assert one.wait(LIMIT_S)
    assert not one.stopping.is_set()
    one.check()


def test_what_is_at_hand_is_finished_and_what_waits_is_dropped() -> None:
    failures: list[BaseException] = []
    done: list[str] = []
    begun, go = threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        assert go.wait(LIMIT_S)
        done.append("first")

    jobs = Jobs(failures.append)
    jobs.open()
    assert jobs.looked.wait(LIMIT_S), "it looks around while nothing is to be done"
    jobs.put(lambda: done.append("zeroth"))
    jobs.put(first)
    assert begun.wait(LIMIT_S)
    jobs.put(lambda: done.append("second"))
    assert not jobs.close(0.01)
    go.set()
    assert jobs.close(LIMIT_S)
    assert (done, jobs.ended, failures) == (["zeroth", "first"], 1, [])


def test_a_job_that_fails_leaves_nothing_behind_either() -> None:
    failures: list[BaseException] = []
    jobs = Jobs(failures.append)
    jobs.put(lambda: [].pop())
    jobs.open()
    assert jobs.wait(LIMIT_S)
    assert jobs.close(LIMIT_S)
    assert jobs.ended == 1
    assert [type(one) for one in failures] == [IndexError]


def test_one_that_never_began_can_be_closed() -> None:
    failures: list[BaseException] = []
    assert Jobs(failures.append).close()
    assert failures == []


def announcing(announce: Callable[[str], None]) -> process.Serving:
    """An endpoint, which is only asked to say that it serves."""

    async def answers(*_: Any) -> None:
        """Nobody asks."""

    return process.Serving(
        load_settings(),
        lambda _: answers,
        socket.socket,
        "http://127.0.0.1",
        lambda *_: None,
        "work",
        announce=announce,
    )


def test_an_endpoint_that_cannot_say_that_it_serves_logs_why(caplog: pytest.LogCaptureFixture) -> None:
    def broken(url: str) -> None:
        raise BrokenPipeError(f"{url} is told to nobody")

    one = announcing(broken)
    one._server.started = True
    one._started.set()
    one._announcer.open()
    assert one._announcer.wait(LIMIT_S)
    assert "the thread announce has failed" in caplog.text
    assert "http://127.0.0.1 is told to nobody" in caplog.text


def test_an_endpoint_that_never_serves_says_nothing_and_ends() -> None:
    """Its work has failed before there was something to answer from."""
    told: list[str] = []
    one = announcing(told.append)
    one._announcer.open()
    one._worker.stopping.set()
    assert one._announcer.wait(LIMIT_S)
    assert told == []


def test_a_delta_that_cannot_be_deleted_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (folder := tmp_path / "delta").mkdir()
    level = Level(folder, SMALL.delta_map_bytes, SMALL, sync=False)
    monkeypatch.setattr("indexer.store.lmdb.levels.shutil.rmtree", lambda *_, **__: None)
    with caplog.at_level(logging.WARNING):
        level.retire(folder)
        wait_for(lambda: f"{folder} is of no use any more" in caplog.text)
