"""The cluster of a data folder, as `keytide up` noted it there in `cluster.json`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from keytide.errors import CallerError
from keytide.http.tls import AUTHORITY_VARIABLE

STATE_FILE: Final = "cluster.json"
_CLOCK_SLACK_S: Final = 2.0
"""How much later than its own note a process may seem to have begun: both times are rounded."""


def read_state(data_dir: Path) -> dict[str, Any]:
    """What the last start wrote; empty when there was none."""
    try:
        state = json.loads((data_dir / STATE_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def running_pid(data_dir: Path) -> int | None:
    """The process id of the `keytide up` that runs on a folder, if one does."""
    state = read_state(data_dir)
    pid, noted_at = state.get("pid"), state.get("started_at")
    if not isinstance(pid, int) or not isinstance(noted_at, int | float):
        return None
    return pid if _is_the_one(pid, noted_at) else None


def running_state(data_dir: Path, usual: Path) -> dict[str, Any] | None:
    """What is known of the cluster that runs on a folder; the authority of its certificates is trusted from
    now on. None when nobody named a folder, and there is no cluster in the usual one.

    Raises:
        CallerError: the folder has no cluster, or one that does not run. Another cluster, which happens to
            listen on the usual port, is never meant.
    """
    state = read_state(data_dir)
    if not state:
        if data_dir == usual:
            return None
        raise CallerError(
            f"there is no cluster in {data_dir}",
            problem_type="no-cluster",
            next_step="correct --data-dir, or name the coordinator with --url; `keytide up` makes a cluster",
        )
    if "pid" in state and running_pid(data_dir) is None:
        raise CallerError(
            f"the cluster in {data_dir} does not run",
            problem_type="no-cluster",
            next_step=f"start it: keytide up --data-dir {data_dir}; or name another one with --url",
        )
    if authority := state.get("tls_authority"):
        os.environ.setdefault(AUTHORITY_VARIABLE, str(authority))
    return state


def _is_the_one(pid: int, noted_at: float) -> bool:
    """Whether the process that left a note at that time is alive. Ids are used again, so another process may
    have its id now, but that one began later."""
    import psutil  # which help does without

    try:
        process = psutil.Process(pid)
        began = float(process.create_time())
        return began <= noted_at + _CLOCK_SLACK_S and bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
