"""When a source has lost acknowledged records: what everything goes back to, and who cannot (R28 to R33).
Pure.

Told by `coordinator.leader`; looking into Kafka's log is `coordinator.kafka.log_examination`.
"""
