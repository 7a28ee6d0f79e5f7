"""What mutation queues and topics need no more, and how far a queue may be deleted (R34). Pure.

Told by `coordinator.leader`. Carried out by `coordinator.kafka.queue_trimming`, which asks `trim_guard` again
whatever was ordered.
"""
