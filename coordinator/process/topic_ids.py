"""Asks Kafka which topic has a name now, without anybody waiting for it.

The question is one metadata request; its answer comes on a thread of librdkafka's. Every question is answered
within its time-out, if only by an error. Whatever broker is asked speaks for what it knows: one that is cut
off from the controllers and answers all the same may name a topic that is gone, until it is back or shut out.

The client sends the question to the controller that it knows of. It learns of another one from metadata only,
which a client without topics of its own never asks for: after an error this asks, or no question would be
answered again while that one broker is gone. Questions wait for that.

A timestamp is issued as soon as its question is answered; so while one is out the control loop waits here,
for a moment, and not for reports.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection

from coordinator.core.events import TopicSeen
from coordinator.core.instructions import ConfirmTopic
from keytide.kafka.admin import KafkaUnavailableError, admin, error_code, find_controller
from keytide.kafka.clients import AdminClient
from keytide.process.clock import now_ms
from keytide.process.worker import QueueWorker
from keytide.settings.settings import Settings

log = logging.getLogger(__name__)

TIMEOUT_S = 1.0
"""A broker that hangs is asked no longer than this; the next question may go to another one."""
MOMENT_S = 0.001
"""Answers come within it, mostly; who waits for one hears no report meanwhile."""

_NONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)


class TopicIds(QueueWorker[ConfirmTopic]):
    """Puts questions, posts answers. The client is its thread's; its end waits for what is under way.

    Args:
        settings: where Kafka is.
        post: takes the answers, from any thread.
        failed: told of an error that ends the coordinator.
    """

    def __init__(
        self, settings: Settings, post: Callable[[TopicSeen], None], failed: Callable[[BaseException], None]
    ) -> None:
        super().__init__("topic-ids", failed)
        self._client: AdminClient = admin(settings)
        self._post_on = post
        self._posted = threading.Event()
        self._unanswered = threading.Event()
        """A question was answered by an error: the controller may be another one."""

    def wait_for_answer(self) -> bool:
        """Wait a moment for an answer to be posted; whether one was since this was called last."""
        posted = self._posted.wait(MOMENT_S)
        self._posted.clear()
        return posted

    def _post(self, answer: TopicSeen) -> None:
        self._post_on(answer)
        self._posted.set()

    def _end(self) -> None:
        self._client.close()

    def _carry_out(self, job: ConfirmTopic) -> None:
        if self._unanswered.is_set():
            self._look_for_controller()
        self._send(job)

    def _send(self, question: ConfirmTopic) -> None:
        def answered(future: Future[Any]) -> None:
            topic_id, error = "", ""
            try:
                topic_id = str(future.result().topic_id)
            except KafkaException as failure:
                error = "" if error_code(failure) in _NONE else str(failure)
            if error:
                self._unanswered.set()
            self._post(TopicSeen(question.keyspace, question.ask, topic_id, error, now_ms()))

        names = TopicCollection([question.keyspace])
        try:
            futures = self._client.describe_topics(names, request_timeout=TIMEOUT_S)
        except KafkaException as failure:
            self._post(TopicSeen(question.keyspace, question.ask, "", str(failure), now_ms()))
            return
        futures[question.keyspace].add_done_callback(answered)

    def _look_for_controller(self) -> None:
        try:
            find_controller(self._client, TIMEOUT_S)
        except KafkaUnavailableError as failure:
            log.debug("who the controller is cannot be asked: %s", failure)
        else:
            self._unanswered.clear()
