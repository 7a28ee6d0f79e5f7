"""Coordinators that stand by: who leads now, and when to claim the cluster.

Theory of operation. A claim fences the leader, so a coordinator that is started must not claim while another
one leads: two that are both started again by a supervisor would take the term from each other for ever. The
leader says in the control topic that it lives, `Leading`, every `SAY_MS`. Who is started reads the tail of
that topic and then listens. It claims when

* nobody has ever led, or the newest leader has said that it is leaving;
* the newest leader was a process of this machine that is no more (the usual restart: no need to wait);
* nothing of the newest term, or a higher one, was heard for `coordinator.leader_timeout_ms`, while Kafka
  answered all the time: who cannot hear must not conclude that nobody speaks.

Two that claim at once are told apart by Kafka's fencing: one of them leads, the other stands by again
(`claim`). A leader that was paused and is fenced by then stops, and is started again into standing by.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil

from coordinator.election.claim import read_catalog
from keytide.catalog.records import TermRecord
from keytide.errors import KeytideError, RetryableError
from keytide.kafka.admin import KafkaUnavailableError, admin, describe_topics, list_offsets
from keytide.kafka.topics import TopicReader
from keytide.model.health import Verdict, single
from keytide.model.topics import Topics
from keytide.settings.settings import Settings
from keytide.wire.messages import Leading, Published, StabilityTimestamp, decode

log = logging.getLogger(__name__)

SAY_MS = 300
"""Between two words of a leader that it lives."""
TAIL_MESSAGES = 500
PROBE_S = 0.5
"""Between questions whether Kafka answers."""
PROBE_TIMEOUT_S = 2.0
QUIET_S = 1.0
"""After this long without a word it is looked whether the leader was a process of this machine."""
_SLACK_S = 1.0


def this_process() -> str:
    """This process by name: machine and boot, process namespace, process id, start. "" in the first part
    where the system does not tell them."""
    return "/".join((socket.gethostname(), _machine(), f"{os.getpid()}@{psutil.Process().create_time():.2f}"))


def is_gone(holder: str) -> bool:
    """Whether a leader was a process of this machine (and of this boot and namespace of processes) that has
    ended. False when that cannot be told."""
    try:
        host, machine, process = holder.split("/")
        pid, started = process.split("@")
        number, began = int(pid), float(started)
    except ValueError:
        return False
    if not machine or (host, machine) != (socket.gethostname(), _machine()):
        return False
    try:
        other = psutil.Process(number)
        return bool(other.status() == psutil.STATUS_ZOMBIE or abs(other.create_time() - began) > _SLACK_S)
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


def _machine() -> str:
    """What tells this machine, since it was booted, and this namespace of processes from all others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


class StandsByError(RetryableError):
    """The coordinator that was asked does not lead, and nothing was done: ask another one."""

    problem_type = "coordinator-stands-by"


class Standby:
    """Waits until the cluster may be claimed.

    Args:
        settings: where Kafka is.
        stopping: ends the wait.
        check: looked at every now and then: what it raises ends the wait, too.

    Attributes:
        leader: who leads, as far as is known; "" while nobody does.
        leader_url: where that one answers; "" when that is not known.
        ended: the highest term that was seen, which is over when `wait` has returned.
    """

    def __init__(self, settings: Settings, stopping: threading.Event, check: Callable[[], None]) -> None:
        self.leader = self.leader_url = ""
        self.ended = 0
        self._settings = settings
        self._stopping = stopping
        self._check = check
        self._topics = Topics(settings.cluster)
        self._client = admin(settings)

    def close(self) -> None:
        """There is nothing to wait for any more."""
        self._client.close()

    def verdict(self, cluster: str) -> Verdict:
        """What a coordinator that does not lead can say of the cluster: the rest is known to the leader."""
        who = f"{self.leader} leads the cluster" if self.leader else "it is starting, and nobody leads"
        step = "ask the coordinator that leads, or try again in a moment"
        if not self.leader:
            step = "try again in a moment; if it stays so, see its log and whether Kafka answers"
        return single("cluster", cluster, "failing", f"this coordinator stands by: {who}", step)

    def wait(self) -> None:
        """Return when nobody leads, or when `stopping` is set.

        Raises:
            KafkaUnavailableError: Kafka is away at the beginning.
        """
        record = self._claim()
        self.ended = record.term if record else 0
        if record is None or is_gone(record.holder):
            return
        self.leader = record.holder
        end = list_offsets(self._client, self._topics.control, [0])[0]
        begin = list_offsets(self._client, self._topics.control, [0], earliest=True)[0]
        start = {0: max(begin, end - TAIL_MESSAGES)}
        with closing(TopicReader(self._settings, self._topics.control, start)) as reader:
            try:
                self._listen(reader, end)
            finally:
                self.leader = self.leader_url = ""

    def refusal(self) -> StandsByError:
        """What is answered to whoever wants something of the leader."""
        (reason,) = self.verdict(self._settings.cluster).reasons
        return StandsByError(reason.reason, next_step=reason.next_step)

    def _claim(self) -> TermRecord | None:
        """The newest claim; None when there was none."""
        if not describe_topics(self._client, [self._topics.metadata]):
            return None
        record = read_catalog(self._settings).records.get("term")
        return record if isinstance(record, TermRecord) else None

    def _listen(self, reader: TopicReader, end: int) -> None:
        limit = self._settings.coordinator.leader_timeout_ms / 1000
        told = False
        heard = probed = time.monotonic()
        while not self._stopping.is_set():
            self._check()
            for message in reader.poll(0.1):
                word = _word(message.value() or b"")
                if word is None or word.term < self.ended:
                    continue
                self.ended = word.term
                if isinstance(word, Leading):
                    if word.leaving:
                        return
                    self.leader, self.leader_url = word.holder, word.url
                if (message.offset() or 0) >= end:
                    heard = time.monotonic()
            now = time.monotonic()
            if now - probed >= PROBE_S:
                if not self._answers():
                    heard = time.monotonic()
                probed = time.monotonic()
            silent = now - heard
            if silent > limit or (silent > QUIET_S and is_gone(self.leader)):
                log.info("term %d of %s is silent: this one claims the cluster", self.ended, self.leader)
                return
            if not told and now - heard < limit / 2:
                told = True
                log.info("standing by: %s leads term %d", self.leader, self.ended)

    def _answers(self) -> bool:
        try:
            list_offsets(self._client, self._topics.control, [0], timeout=PROBE_TIMEOUT_S)
        except KafkaUnavailableError as error:
            log.info("Kafka does not answer a coordinator that stands by: %s", error)
            return False
        return True


def _word(data: bytes) -> Leading | StabilityTimestamp | Published | None:
    """What a leader said, if it can be read."""
    try:
        message = decode(data)
    except KeytideError:
        return None
    return message if isinstance(message, Leading | StabilityTimestamp | Published) else None
