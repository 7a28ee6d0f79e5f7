"""What CREATE INDEX has to say of fields that nobody has.

A path that no document has makes an index that is READY and empty: right, and hardly ever what was meant. So
the last documents of each partition are looked at, some and for a moment only, and fields that none of them
has are named, with what they may have meant. It is a notice: it never fails the statement, and documents of
tomorrow may have the field.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from confluent_kafka import KafkaException, TopicPartition

from coordinator.core.source_status import SourceStatus
from keytide.definition.expression import Path, walk
from keytide.definition.index import IndexDefinition
from keytide.definition.render import path_name
from keytide.errors import KeytideError
from keytide.kafka.topics import consumer
from keytide.model.hints import nearest
from keytide.settings.settings import Settings

log = logging.getLogger(__name__)

DOCUMENTS: Final = 200
"""From all partitions together: enough to meet what a hundredth of the documents has, mostly."""
LIMIT_S: Final = 1.0
"""How much longer the statement takes at most."""
_DEEPEST: Final = 8


def notice(settings: Settings, definition: IndexDefinition, source: SourceStatus) -> str:
    """What is to be said of a definition, "" for nothing. Blocks, for `LIMIT_S` at most."""
    try:
        values = _recent(settings, source)
    except (KafkaException, KeytideError) as error:
        log.info("no documents of %s are looked at: %s", source.keyspace, error)
        return ""
    return unknown_fields(definition, values)


def unknown_fields(definition: IndexDefinition, values: Iterable[bytes]) -> str:
    """What is to be said of a definition beside some documents. Pure."""
    documents = [one for one in map(_decoded, values) if isinstance(one, dict)]
    if not documents:
        return ""
    unknown = [path for path in _paths(definition) if not any(_has(one, path.steps) for one in documents)]
    if not unknown:
        return ""
    known = sorted({name for one in documents for name in _names(one)})
    said = []
    for name in map(path_name, unknown):
        meant = nearest(name, known)
        said.append(name if meant is None else f"{name} (did you mean {meant}?)")
    leading = not definition.include_missing and any(
        node in unknown for node in walk(definition.keys[0].expression)
    )
    follows = "; documents without the leading key have no entries" if leading else ""
    return f"none of the {len(documents)} newest documents looked at has {', '.join(said)}{follows}"


def _recent(settings: Settings, source: SourceStatus) -> list[bytes]:
    """Values of the last records, some of each partition.

    Raises:
        KafkaException: Kafka does not give them.
    """
    share = max(1, DOCUMENTS // max(1, source.partitions))
    places = [
        TopicPartition(source.keyspace, partition, max(source.earliest.get(partition, 0), end - share))
        for partition, end in sorted(source.stable.items())
        if end > source.earliest.get(partition, 0)
    ]
    found: list[bytes] = []
    if not places:
        return found
    reader = consumer(settings, auto_offset_reset="latest")
    try:
        reader.assign(places)
        deadline, left = time.monotonic() + LIMIT_S, len(places)
        while left and len(found) < DOCUMENTS and (wait := deadline - time.monotonic()) > 0:
            for message in reader.consume(DOCUMENTS, min(0.1, wait)):
                if message.error() is not None:
                    left -= 1  # its end
                elif (value := message.value()) is not None:
                    found.append(value)
    finally:
        reader.close()
    return found


def _decoded(value: bytes) -> Any:
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _paths(definition: IndexDefinition) -> list[Path]:
    """Every path that a definition names, once, in its order."""
    nodes = [part.expression for part in definition.keys]
    found = [node for root in nodes for node in walk(root) if isinstance(node, Path)]
    found += definition.include
    if definition.where is not None:
        found += [node for node in walk(definition.where) if isinstance(node, Path)]
    return list(dict.fromkeys(found))


def _has(value: Any, steps: Sequence[str | int]) -> bool:
    for step in steps:
        if isinstance(step, int):
            if not isinstance(value, list) or not -len(value) <= step < len(value):
                return False
        elif not isinstance(value, dict) or step not in value:
            return False
        value = value[step]
    return True


def _names(document: dict[str, Any], before: str = "", depth: int = 0) -> Iterator[str]:
    """All fields of a document, with those of objects in it."""
    for name, value in document.items():
        yield before + name
        if isinstance(value, dict) and depth < _DEEPEST:
            yield from _names(value, f"{before}{name}.", depth + 1)
