"""What all pure parts of the coordinator speak: events in, instructions out, the state of sources, who is
alive, and the limits that they obey. Pure.

Imported by `coordinator.leader`, the pure rooms that it tells, `coordinator.kafka` and `coordinator.process`;
imports none of them.
"""
