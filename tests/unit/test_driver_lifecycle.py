"""The life cycle that all Spark drivers share: how each end is told, and what is given back before."""

from __future__ import annotations

import fcntl
import threading
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keytide.catalog.catalog import Catalog
from keytide.catalog.records import TermRecord
from keytide.errors import KeytideError, RetryableError
from keytide.settings.settings import load_settings
from streaming.core import micro_batches as core
from streaming.core.log_identity import ReadLostError
from streaming.drivers import lifecycle
from streaming.drivers.failures import BuildImpossibleError, StoppedError
from streaming.drivers.journal import JournalLostError
from tests.waiting import LIMIT_S, wait_for


class Program(lifecycle.Driver):
    """Fails with what it is given, while it holds something."""

    kind = "job"
    error: BaseException | None = None

    def prepare(self) -> None:
        self.told: list[str] = []

    def work(self, held: ExitStack) -> None:
        held.callback(self.told.append, "given back")
        if self.error is not None:
            raise self.error

    def failed(self, never: bool, note: str) -> None:
        self.told.append(f"{'never' if never else 'again'}: {note}")


def test_two_drivers_never_share_a_folder(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that stands still holds up nobody: the other one works in a folder of its own."""
    monkeypatch.setattr(lifecycle, "LOCK_LIMIT_S", 0.0)
    places: list[Path] = []
    monkeypatch.setattr(program, "work", lambda held: places.append(program.files))
    with (program.folder / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert program.run() == core.EXIT_PASSED
    assert places == [program.folder / "beside-0.0"]
    assert not places[0].exists(), "nobody else needs it"
    assert not [told for told in program.told if told.startswith(("again", "never"))], "it failed"


def test_one_that_is_asked_to_end_does_not_wait_for_a_lock(program: Program) -> None:
    with (program.folder / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        program._stop.set()
        assert program.run() == core.EXIT_STOPPED
    assert program.files == program.folder


def test_the_same_start_never_works_twice(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "LOCK_LIMIT_S", 0.0)
    (program.folder / "beside-0.0").mkdir()
    with ExitStack() as held:
        for folder in (program.folder, program.folder / "beside-0.0"):
            fcntl.flock(held.enter_context((folder / "lock").open("w")), fcntl.LOCK_EX)
        assert program.run() == core.EXIT_RETRY
        assert not is_free(program.folder / "beside-0.0"), "it is the other one's"
    assert "another driver works on job j1" in program.told[0]


def test_a_folder_is_locked_until_what_runs_the_tasks_has_ended(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when that takes longer than the driver waits for it."""
    monkeypatch.setattr(lifecycle, "END_S", 0.01)
    ends = threading.Event()
    monkeypatch.setattr(program, "engine", SimpleNamespace(close=lambda: ends.wait(LIMIT_S)))
    try:
        assert program.run() == core.EXIT_PASSED
        assert not is_free(program.folder)
    finally:
        ends.set()
    wait_for(lambda: is_free(program.folder), "the lock", limit=5)


def is_free(folder: Path) -> bool:
    """Whether no driver has a folder's lock."""
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Program:
    made = Program(load_settings(data_dir=str(tmp_path)), "j1", threading.Event())

    class Reporter:
        def __init__(self, *_: Any) -> None: ...

        def send(self) -> None:
            made.told.append("said")

        def close(self) -> None:
            made.told.append("silent")

    monkeypatch.setattr(lifecycle, "DriverReporter", Reporter)
    return made


@pytest.mark.parametrize(
    ("error", "status", "note"),
    [
        (None, core.EXIT_PASSED, None),
        (StoppedError(), core.EXIT_STOPPED, None),
        (RetryableError("a node is away"), core.EXIT_RETRY, "again: unavailable: a node is away"),
        (RuntimeError("?"), core.EXIT_RETRY, "again: driver-failed: ?"),
        (BuildImpossibleError("it is gone"), core.EXIT_NEVER, "never: build-impossible: it is gone"),
        (ReadLostError("from 3 on"), core.EXIT_READ_LOST, "again: read-lost: from 3 on"),
        (JournalLostError("no folder"), core.EXIT_JOURNAL_LOST, "journal-lost: no folder"),
    ],
)
def test_each_end_has_its_status_and_is_said(
    program: Program, error: KeytideError | None, status: int, note: str | None
) -> None:
    program.error = error
    assert program.run() == status
    assert is_free(program.folder)
    given_back, *notes, said, silent = program.told
    assert (given_back, said, silent) == ("given back", "said", "silent")
    assert len(notes) == (note is not None)
    assert not notes or (note or "?") in notes[0]


@pytest.mark.parametrize(("attempt", "ends"), [((2, 7), True), ((3, 1), False), ((0, 0), False)])
def test_a_driver_of_a_leader_that_is_none_any_more_ends(
    program: Program, attempt: tuple[int, int], ends: bool
) -> None:
    catalog = Catalog()
    catalog.put("term", TermRecord(3, "another", 0))
    program.attempt = attempt
    if ends:
        with pytest.raises(StoppedError):
            program.check_led(catalog)
    else:
        program.check_led(catalog)


def test_what_fails_while_a_driver_is_asked_to_end_is_no_failure(program: Program) -> None:
    program.error = RuntimeError("Job 0 cancelled")
    program._stop.set()
    assert program.run() == core.EXIT_STOPPED
    assert program.told == ["given back", "said", "silent"]


class FakeReader:
    """In place of the metadata's reader: raises these errors, one after the other, once it was heard."""

    def __init__(self, errors: list[Exception], heard: list[Catalog]) -> None:
        self._errors, self._heard = errors, heard

    def start(self) -> None: ...

    def hand_over(self) -> None: ...

    def close(self) -> None: ...

    def snapshot(self) -> Catalog:
        return Catalog()

    def poll(self, timeout: float) -> list[int]:
        if self._heard and self._errors:
            raise self._errors.pop(0)
        return [1]


class FakeIdentity:
    def __init__(self, _: Any) -> None: ...

    def look(self) -> None: ...


def follower(
    monkeypatch: pytest.MonkeyPatch, errors: list[Exception], heard: list[Catalog], **build: Any
) -> lifecycle.MetadataFollower:
    monkeypatch.setattr(lifecycle, "CatalogReader", lambda _: FakeReader(errors, heard))
    monkeypatch.setattr(lifecycle, "KafkaIdentity", FakeIdentity)
    return lifecycle.MetadataFollower(load_settings(build=build), heard.append)


def test_a_driver_is_told_when_its_metadata_is_read_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not answer for a moment is asked again; everything else ends reading, and the driver."""
    errors: list[Exception] = [RetryableError("away"), ValueError("broken")]
    heard: list[Catalog] = []
    following = follower(monkeypatch, errors, heard)
    assert following._worker.wait(10)
    assert heard
    assert not errors
    with pytest.raises(ValueError, match="broken"):
        following.catalog()
    following.close()


def test_a_driver_does_not_go_by_old_metadata_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "FOLLOW_S", 0.01)
    errors: list[Exception] = [RetryableError("access refused") for _ in range(10_000)]
    following = follower(monkeypatch, errors, [], kafka_away_s=1)
    assert following._worker.wait(20)
    assert errors
    with pytest.raises(RetryableError, match="access refused"):
        following.catalog()
    following.close()
