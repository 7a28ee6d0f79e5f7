"""The coordinator: the system dictionary, stability timestamps, builds and placement.

What lives here: a pure core that merges progress into numbered timestamps and moves builds through their
states, and the service around it: a reader of the compacted metadata topic, the broadcaster on the control
topic, and the admin API.

Started by `deploy.cluster`, as `python -m coordinator`. Who may import it: nobody. What it may import:
`keytide`.

Not to be touched lightly: what is written to the metadata topic is the only memory of a cluster; write first,
act after. The number of a stability timestamp is never used twice, and a timestamp never goes back without a
rollback that says so.
"""
