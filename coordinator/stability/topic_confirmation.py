"""Whether what was read was of the topic that it is taken for. Pure (R15; docs/adr/0017).

Theory of operation. A topic that is deleted and made anew keeps its name, and consumers fetch by name: one
that stands at an offset which the new topic has too, under the same leader epoch, reads on without any sign.
Kafka never uses a topic id twice. So when the name stood for topic T *after* a record was read, that record
is of T, whatever happened before and whatever happens next. That is all that is asked here: just before new
content would be issued, which topic has the name now? What was acknowledged when the question was asked is
then confirmed, and is the content of the next timestamp. Reports that come meanwhile wait for the next one.

A question is one small request for each timestamp with new content, none for a document, a batch or a
heartbeat, and none while nothing is written. One is under way at a time. Another topic, or none, confirms
nothing, and the same content is asked about again; `coordinator.rollback.rollback` goes by the answer as
well.
"""

from __future__ import annotations

from coordinator.core.events import TopicSeen
from coordinator.core.instructions import ConfirmTopic
from coordinator.stability.stream import StabilityStream

RETRY_MS = 100
"""Between questions that confirmed nothing."""
LOST_MS = 30_000
"""An answer that takes longer will not come."""


def ask(stream: StabilityStream, now: int) -> list[ConfirmTopic]:
    """Have what is acknowledged now confirmed, if nothing is being asked."""
    if now < stream.ask_at:
        return []
    stream.asked = stream.progress.content()
    stream.ask += 1
    stream.asked_at, stream.ask_at = now, now + LOST_MS
    return [ConfirmTopic(stream.progress.keyspace.name, stream.ask)]


def answered(stream: StabilityStream | None, event: TopicSeen) -> None:
    """Take in what Kafka says."""
    if stream is None or stream.asked is None or event.ask != stream.ask:
        return
    known = stream.progress.keyspace.topic_id
    if event.topic_id and event.topic_id == (known or event.topic_id):
        stream.confirmed = stream.asked
        stream.ask_at = event.now
    else:
        stream.ask_at = event.now + RETRY_MS
    stream.asked = None


def not_before(stream: StabilityStream, due: int, now: int) -> int:
    """When a timestamp with new content can come, that would be due at `due`: a moment from now while the
    answer is out."""
    if stream.ripe is not None:
        return due
    return max(due, now + 1 if stream.asked is not None else stream.ask_at)
