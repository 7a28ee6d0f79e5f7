"""What operators are shown, as JSON documents, and the one verdict of health. Pure: a look at the leader at
one moment.

Called by `coordinator.http` only (its routes and metrics): within the control loop what looks at the leader,
behind it what puts answers of nodes together (`index_lists`, `map_samples`).
"""
