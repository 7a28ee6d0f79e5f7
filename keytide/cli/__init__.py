"""The `keytide` command: HTTP to a cluster for everything but `up`, `down`, `demo` and `doctor`, which use
`deploy`.

    app      the commands
    scan     rows for people, and whole indexes as files
    admin    the coordinator's REST API, and where it is
    nodes    which nodes reads ask; patience: for how long
    looks    what people see of keyspaces, slices and events
    output   tables, progress bars, JSON, errors
    local    up, down, demo: the only place in `keytide` that reaches `deploy`, and only when called
"""

from keytide.cli.app import app

__all__ = ["app"]
