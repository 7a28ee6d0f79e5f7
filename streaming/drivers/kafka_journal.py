"""Where the journals of builds are: a topic, and what releases before this one have left on a machine."""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from keytide.kafka.admin import REQUEST_TIMEOUT_S, KafkaUnavailableError
from keytide.kafka.fenced_writer import FencedWriter
from keytide.kafka.topics import TopicReader
from keytide.model.topics import Topics
from keytide.settings.settings import Settings
from streaming.drivers.journal import Journal

READ_WAIT_MS: Final = 50
"""The end of the topic is a transaction's marker, which only the end-of-partition event tells; the broker
gives it after this time."""
_BUILD: Final = re.compile(rb"b[0-9]+")
"""Keys of journals. (What others write there is nothing.)"""


class KafkaJournalTopic(FencedWriter):
    """`streaming.drivers.journal.JournalTopic`, for the driver of one build."""

    def __init__(self, settings: Settings, build: str, stopping: threading.Event) -> None:
        super().__init__(
            settings, Topics(settings.cluster).builds, f"{settings.cluster}-build-{build}", stopping
        )

    def read(self, end: int) -> dict[str, bytes]:
        """The journals of all builds, as far as an offset at least, encoded.

        Raises:
            KafkaUnavailableError: they cannot be read now.
        """
        return read_journals(self._settings, end)


def read_journals(settings: Settings, end: int) -> dict[str, bytes]:
    """The journals of all builds, by their ids, as far as an offset at least, encoded.

    Raises:
        KafkaUnavailableError: they cannot be read now.
    """
    topic, deadline = Topics(settings.cluster).builds, time.monotonic() + REQUEST_TIMEOUT_S
    found: dict[str, bytes] = {}
    with contextlib.closing(TopicReader(settings, topic, {0: 0}, fetch_wait_max_ms=READ_WAIT_MS)) as reader:
        while reader.positions.get(0, -1) < end:
            if time.monotonic() > deadline:
                raise KafkaUnavailableError(f"{topic} was not read to offset {end}")
            for record in reader.poll(0.1):
                key, value = record.key() or b"", record.value()
                if not _BUILD.fullmatch(key):
                    continue
                if value is None:
                    found.pop(key.decode(), None)
                else:
                    found[key.decode()] = value
    return found


class EarlierJournal:
    """What an earlier release has left on this machine.

    Args:
        folder: of the build's driver.
        begin: where reading began, says Spark's checkpoint there; None when it is not there.
    """

    def __init__(self, folder: Path, begin: Callable[[Path], Mapping[int, int] | None]) -> None:
        self._file = folder / "progress.json"
        self._checkpoint = folder / "checkpoint"
        self._begin = begin

    def load(self) -> Journal | None:
        """None when there is none, or not all of it."""
        try:
            journal = msgspec.json.decode(self._file.read_bytes(), type=Journal)
        except FileNotFoundError:
            return None
        begin = self._begin(self._checkpoint)
        journal.begin = None if begin is None else dict(begin)
        begun = begin is not None or journal.table_read or journal.nothing_to_read is not None
        # (Without a micro-batch nothing was sent: it was killed before Spark had written down a plan.)
        return journal if begun or journal.newest is None else None

    def remove(self) -> None:
        """It counts no more: were that release to come back, the build would begin again."""
        self._file.unlink(missing_ok=True)
        shutil.rmtree(self._checkpoint, ignore_errors=True)
