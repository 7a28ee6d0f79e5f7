"""Transactions that hold a source up, and whose they are.

Theory of operation. A reader of committed records stands at the first record of the oldest open transaction
(the last stable offset). One is open now and then in every topic that is written so, for a moment; one that
keeps that offset where it is for longer is worth a word. Who it is only Kafka's newer admin requests tell,
which librdkafka has not: kafka-python asks (KIP-664, as `kafka-transactions.sh` does). Not all brokers and
not all users may: then place and time are told without the name.
"""

from __future__ import annotations

import logging
import time
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaError

from coordinator.core.source_status import OpenTransaction, SourceStatus
from keytide.kafka.kafka_python import python_client
from keytide.settings.settings import Settings

log = logging.getLogger(__name__)

PATIENCE_MS: Final = 2_000
"""Before a stable offset that stands still is told of: most transactions take less."""
ASK_TIMEOUT_MS: Final = 2_000
ASK_AGAIN_S: Final = 10.0
"""Before Kafka is asked again whose it is, when it has not told."""


@dataclass(slots=True)
class _Stand:
    """A last stable offset below the end: since when, and what is known of the transaction there; `named`
    when that is all that there is to know."""

    offset: int
    since: int
    told: OpenTransaction | None = None
    named: bool = False
    ask_at: float = 0.0


class TransactionWatch:
    """Follows the last stable offsets of topics. One thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stands: dict[str, dict[int, _Stand]] = {}

    def look(self, source: SourceStatus) -> SourceStatus:
        """The same, with the transactions that hold the topic up."""
        before = self._stands.get(source.keyspace, {})
        stands: dict[int, _Stand] = {}
        for partition, stable in sorted(source.stable.items()):
            if stable < source.high.get(partition, stable):
                known = before.get(partition)
                same = known is not None and known.offset == stable
                stands[partition] = known if known and same else _Stand(stable, source.sampled_at)
        self._stands[source.keyspace] = stands
        late = {p: one for p, one in stands.items() if source.sampled_at - one.since >= PATIENCE_MS}
        unknown = [p for p, one in late.items() if not one.named and time.monotonic() >= one.ask_at]
        if unknown:
            self._ask(source.keyspace, {partition: late[partition] for partition in unknown})
        found = [one.told or self._unknown(source.keyspace, p, one) for p, one in late.items()]
        return replace(source, open_transactions=tuple(found)) if found else source

    def _unknown(self, topic: str, partition: int, stand: _Stand) -> OpenTransaction:
        """What is known without Kafka's word."""
        remedy = (
            "have its producer commit or abort it, or restart it; Kafka aborts it after the producer's "
            "transaction.timeout.ms. Or: kafka-transactions.sh --bootstrap-server "
            f"{self._settings.kafka.bootstrap} abort --topic {topic} --partition {partition} "
            f"--start-offset {stand.offset}"
        )
        return OpenTransaction(partition, stand.offset, stand.since, remedy)

    def _ask(self, topic: str, stands: dict[int, _Stand]) -> None:
        """Learn whose the transactions are that begin there."""
        for one in stands.values():
            one.ask_at = time.monotonic() + ASK_AGAIN_S
        try:
            config = python_client(self._settings)
            if config is None:
                return
            with closing(KafkaAdminClient(**config, request_timeout_ms=ASK_TIMEOUT_MS)) as client:
                self._name(client, topic, stands)
        except (KafkaError, OSError, ValueError, LookupError) as error:  # also an answer that it cannot read
            log.info("whose the open transactions of %s are is not to be had: %s", topic, error)

    def _name(self, client: KafkaAdminClient, topic: str, stands: dict[int, _Stand]) -> None:
        """Fill in what Kafka tells: the producer first, then its name and when it began."""
        places = {TopicPartition(topic, partition): one for partition, one in stands.items()}
        for place, state in client.describe_producers(list(places)).items():
            stand = places[place]
            for producer in state.active_producers:
                if producer.current_transaction_start_offset == stand.offset:
                    stand.told = replace(
                        self._unknown(topic, place.partition, stand),
                        producer_id=producer.producer_id,
                        producer_epoch=producer.producer_epoch,
                    )
        ids = {one.told.producer_id for one in stands.values() if one.told is not None}
        if not ids:
            return
        listed = client.list_transactions(producer_id_filters=sorted(ids)).values()
        names = {line.producer_id: line.transactional_id for lines in listed for line in lines}
        described = client.describe_transactions(sorted(names.values()))
        for stand in stands.values():  # (one transaction may hold several partitions)
            if stand.told is not None and (name := names.get(stand.told.producer_id)) is not None:
                began = described[name].transaction_start_time_ms
                since = began if began > 0 else stand.since
                stand.told, stand.named = replace(stand.told, transactional_id=name, since=since), True
