"""Adapters over Kafka's clients that every service shares: readers, admin requests, a topic's past, which
Kafka this is.

The only place in the vocabulary that knows confluent-kafka and kafka-python. Each client is used by one
thread (docs/adr/0023). Imported by the shells `coordinator.kafka`, `projector.service`, `indexer.ingest`,
`streaming.drivers`.
"""
