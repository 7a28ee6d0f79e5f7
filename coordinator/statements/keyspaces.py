"""The topics that indexes can be made on. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from coordinator.catalog.dictionary import Dictionary
from coordinator.catalog.registry import ConflictError
from coordinator.core.source_status import SourceStatus
from keytide.catalog.records import KeyspaceRecord
from keytide.errors import CallerError


class NoSuchKeyspaceError(CallerError):
    """The source topic does not exist, or is none."""

    problem_type = "keyspace-not-found"
    status = 404


def take_keyspace(dictionary: Dictionary, name: str, source: SourceStatus) -> None:
    """See that the topic can be a keyspace, and that the dictionary knows it."""
    topics = dictionary.topics
    own = (topics.metadata, topics.control, topics.reports, topics.builds)
    if name in own or name.startswith((topics.mutations(""), f"{topics.cluster}.backfill.")):
        raise NoSuchKeyspaceError(
            f"{name} is a topic of Keytide's own", next_step="name a topic that holds your documents"
        )
    if not source.exists:
        raise NoSuchKeyspaceError(
            f"there is no topic {name!r}; an index needs the topic that holds its documents",
            next_step=(f"Did you mean {source.similar_topic}? Else " if source.similar_topic else "")
            + f"create it: kafka-topics.sh --create --topic {name} --partitions N",
        )
    known = dictionary.catalog.keyspace(name)
    if known is None:
        dictionary.put(KeyspaceRecord(name, source.topic_id, source.partitions, version=0))
    elif known.topic_id != source.topic_id:
        others = [index.name for index in dictionary.catalog.indexes(name) if index.version]
        if others:
            raise ConflictError(
                f"topic {name} was deleted and made anew; {', '.join(others)} belong to the old one",
                problem_type="topic-recreated",
                next_step="they begin anew with the new topic in a moment; then try again",
            )
        dictionary.put(replace(known, topic_id=source.topic_id, partitions=source.partitions))
