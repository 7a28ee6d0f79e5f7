"""The system dictionary as the leader means it to be, which node holds which slice, and what builds and jobs
have in common: records that go through states (`registry`). Pure.

Every change of the dictionary goes through `dictionary`, which keeps what is still to be written.
Imported by `coordinator.leader` and the rooms that decide, such as `coordinator.builds` and
`coordinator.statements`.
"""
