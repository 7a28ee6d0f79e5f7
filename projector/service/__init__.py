"""The projector as a process: one loop that reads, projects, sends, acknowledges and commits.

Owns the Kafka consumer and producer. All decisions are in `projector.progress` and `projector.core`.
Imported by `projector.__main__` only.
"""
