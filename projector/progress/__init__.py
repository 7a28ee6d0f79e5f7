"""What a projector knows of its source partitions: polled, sent, acknowledged, committed, activated. Pure:
events in, instructions out.

Driven by `projector.service` and by the simulation. What is committed here is what everybody believes to have
been sent (R8 to R15).
"""
