"""The `keytide` command: HTTP to a cluster for everything but `up`, `down`, `demo`, `doctor`, `trace` and
`gateway`, which `deploy` adds by entry points.

    app          the commands
    calls        what is the same for all that ask the coordinator
    plug_ins     those that other packages bring
    scan         rows for people, and whole indexes as files
    admin        the coordinator's REST API, and where it is
    nodes        which nodes reads ask; rolling: restarts them in turn
    rendering    what people see of keyspaces, slices and events
    output       tables, progress bars, JSON, errors

Started by a shell (`keytide`, a script of pyproject.toml); its tables and plug-ins are imported by `deploy`.
"""

from keytide.cli.app import app

__all__ = ["app"]
