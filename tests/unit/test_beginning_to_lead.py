"""What a coordinator does when Kafka is away while it begins to lead."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from coordinator.process import service as process
from coordinator.process.service import CoordinatorService
from keytide.kafka.admin import KafkaUnavailableError
from keytide.settings.settings import load_settings


class Work:
    """Kafka's admin client, of a Kafka that answers so many questions, and none after that."""

    def __init__(self, answers: int) -> None:
        self.answers = answers
        self.asked = 0

    def __call__(self, _: object) -> Work:
        return self

    def __enter__(self) -> Work:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def make_own_topics(self) -> None:
        self.asked += 1
        if self.asked > self.answers:
            raise KafkaUnavailableError("no answer")


class Identity:
    """Whose Kafka it is: anybody's. It is looked at before each try."""

    def __init__(self, looked: Callable[[], None]) -> None:
        self.look = looked

    def open(self) -> None:
        pass


def began(
    monkeypatch: pytest.MonkeyPatch, folder: Path, answers: int, tries: int
) -> tuple[CoordinatorService, Work]:
    """One that has no time to wait for Kafka, cannot claim, and is told to give up at its last try."""
    settings = load_settings(data_dir=folder, coordinator={"request_timeout_s": 1})
    failures: list[BaseException] = []
    service, work = CoordinatorService(settings, failures.append), Work(answers)

    def looked() -> None:
        if work.asked == tries - 1:
            service.give_up()

    def lead(_: Work) -> None:
        raise KafkaUnavailableError("it went away")

    monkeypatch.setattr(process, "KafkaAdminWork", work)
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=count(0, 2).__next__))
    monkeypatch.setattr(service, "_identity", Identity(looked))
    monkeypatch.setattr(service, "_lead", lead)
    monkeypatch.setattr(service.standby, "wait", lambda: None)
    return service, work


def test_who_has_stood_by_outlasts_a_kafka_that_goes_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    service, work = began(monkeypatch, tmp_path, answers=1, tries=3)
    service.start()
    assert (work.asked, service.leads) == (3, False)


def test_who_never_had_an_answer_says_so_and_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    service, work = began(monkeypatch, tmp_path, answers=0, tries=3)
    with pytest.raises(KafkaUnavailableError, match="stayed away"):
        service.start()
    assert work.asked == 1
