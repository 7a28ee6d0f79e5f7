"""Which Kafka this is: its cluster's id, and the ids of Keytide's own topics, remembered and compared.

Theory of operation: addresses are lent. A broker of another Kafka may answer where the right one did, and a
topic of the same name may be another topic; offsets, and all that was concluded from them, then mean nothing.
So every process looks when it begins and every few seconds from then on (in a thread and with a client of its
own), and stops when what it sees is not what it has seen before. Before a process concludes from offsets that
something is lost, it waits for a look that began after it saw them (`confirmed`).

What was seen is remembered in the data folder, one file per thing:

<data_dir>/kafka-seen/<cluster's name>/cluster             Kafka's id of its cluster
                                      /<name of a topic>   Kafka's id of the topic

A folder that remembers nothing adopts what is seen first. That a topic is missing says nothing: it may not be
made yet, and Kafka's brokers do not all know of it at once.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self

from confluent_kafka import KafkaException

from keytide.errors import ConfigurationError
from keytide.kafka.admin import KafkaUnavailableError, admin, describe_topics
from keytide.kafka.clients import AdminClient, try_another
from keytide.model.topics import Topics
from keytide.process.clock import now_ms
from keytide.process.worker import Worker
from keytide.settings.settings import Settings

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0
"""Between two looks: each is two small requests."""
LOOK_TIMEOUT_S: Final = 5.0
OWN_FAULT: Final = 2
"""After so many looks in vain another client looks (`try_another`)."""
_CLUSTER: Final = "cluster"


class WrongKafkaError(ConfigurationError):
    """Another Kafka answers, or a topic was made anew."""

    problem_type = "wrong-kafka"


class ClusterTopics(NamedTuple):
    """One look.

    Attributes:
        cluster: Kafka's id of its cluster.
        topics: id by name, of those that are there.
    """

    cluster: str
    topics: Mapping[str, str]


class Memory:
    """What was seen of Kafka.

    Args:
        folder: where it is kept; None for as long as the process lives.
        bootstrap: what the user calls this Kafka.
    """

    def __init__(self, folder: Path | None, bootstrap: str) -> None:
        self._folder = folder
        self._bootstrap = bootstrap
        self._known: dict[str, str] = {}

    def compare(self, seen: ClusterTopics) -> None:
        """Adopt what is new.

        Raises:
            WrongKafkaError: something is not what it was.
        """
        if seen.cluster and (before := self._adopted(_CLUSTER, seen.cluster)) != seen.cluster:
            raise WrongKafkaError(
                f"at {self._bootstrap} answers Kafka cluster {seen.cluster}, and what is here belongs to "
                f"Kafka cluster {before}",
                next_step=f"name the right Kafka (kafka.bootstrap), or another data folder{self._where()}",
            )
        for name, id_ in seen.topics.items():
            if (before := self._adopted(name, id_)) != id_:
                raise WrongKafkaError(
                    f"topic {name} was deleted and made anew: it had id {before}, now it has {id_}; what was "
                    "read of it before means nothing now",
                    next_step="restore the topic, or begin a new cluster: another name (`cluster`) and "
                    f"another data folder{self._where()}",
                )

    def _where(self) -> str:
        return f"; remembered in {self._folder}" if self._folder else ""

    def _adopted(self, name: str, id_: str) -> str:
        """What is known under `name`; `id_`, from now on, if that is nothing."""
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._kept(name, id_)
        return known

    def _kept(self, name: str, id_: str) -> str:
        if self._folder is None:
            return id_
        file, new = self._folder / name, self._folder / f"{secrets.token_hex(8)}.new"
        try:
            if not file.exists():
                self._folder.mkdir(parents=True, exist_ok=True)
                new.write_text(id_)
                try:
                    os.link(new, file)  # (another process of this folder may be first)
                except FileExistsError:
                    pass
                finally:
                    new.unlink()
            return file.read_text().strip() or id_
        except OSError as error:
            log.warning("what Kafka's %s is cannot be remembered: %s", name, error)
            return id_


class KafkaIdentity:
    """Looks at Kafka for one process.

    Args:
        settings: where Kafka is, and which topics are ours.
        remember: in the data folder too; else for as long as the process lives.
    """

    def __init__(self, settings: Settings, *, remember: bool = True) -> None:
        folder = settings.data_dir / "kafka-seen" / settings.cluster if remember else None
        topics = Topics(settings.cluster)
        self._names = (topics.metadata, topics.control, topics.reports)
        self._settings = settings
        self._memory = Memory(folder, settings.kafka.bootstrap)
        self._looked_at = 0
        self._worker = Worker("kafka-identity", None, self._run)

    def look(self) -> None:
        """Look now; blocks, in any thread.

        Raises:
            WrongKafkaError: this is not the Kafka that was seen before.
            KafkaUnavailableError: no answer.
        """
        with admin(self._settings) as client:
            self._look(client)

    def open(self) -> Self:
        """Look every LOOK_S from now on."""
        self._worker.open()
        return self

    def check(self) -> None:
        """Cheap; for a loop.

        Raises:
            WrongKafkaError: a look has shown that.
        """
        self._worker.check()

    def confirmed(self, since: int) -> bool:
        """Whether a look that began at `since` (milliseconds since the epoch) or later found the right
        cluster."""
        return self._looked_at >= since

    def close(self) -> None:
        self._worker.close()

    def _run(self) -> None:
        failed = 0
        while not self._worker.stopping.is_set():
            with admin(self._settings) as client:
                while not self._worker.stopping.wait(LOOK_S):
                    try:
                        self._look(client)
                        failed = 0
                    except KafkaUnavailableError as error:
                        log.info("which Kafka this is cannot be asked: %s", error)
                        failed += 1
                        if try_another(failed, OWN_FAULT):
                            break

    def _look(self, client: AdminClient) -> None:
        began = now_ms()
        found = describe_topics(client, self._names, LOOK_TIMEOUT_S)
        cluster = cluster_id(client, next(iter(found), None), LOOK_TIMEOUT_S)
        self._memory.compare(ClusterTopics(cluster, {name: info.id for name, info in found.items()}))
        self._looked_at = began


def cluster_id(client: AdminClient, topic: str | None, timeout: float) -> str:
    """Kafka's id of the cluster that answers now; "" when it has none.

    Args:
        topic: one that is there: metadata of that are small. (One that is not there Kafka might make.)

    Raises:
        KafkaUnavailableError: no answer.
    """
    try:
        metadata = (
            client.list_topics(topic, timeout=timeout) if topic else client.list_topics(timeout=timeout)
        )
    except KafkaException as error:
        raise KafkaUnavailableError(f"Kafka does not say which cluster it is: {error}") from error
    known: str | None = metadata.cluster_id
    return known or ""
