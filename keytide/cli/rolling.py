"""`keytide node restart`: indexer nodes one after the other, so that no scan is refused where slices have
several copies.

Before a node is stopped every slice that it has must be served by another copy; the next node is stopped
when this one has come back and all its copies serve. Kafka Streams and Elasticsearch leave these two looks to
their operators; here one command does them, and says what it waits for.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from keytide.cli.admin import Admin, rest
from keytide.cli.output import progress
from keytide.errors import CallerError, RetryableError
from keytide.model.roles import has_role
from keytide.model.words import few

Document = dict[str, Any]
LOOK_S: Final = 0.5
"""Between looks at the cluster."""
SHOWN: Final = 3
"""Slices that are named."""


def restart(
    admin: Admin,
    names: list[str],
    stop: Callable[[Document], None],
    *,
    force: bool,
    limit_s: float,
    quiet: bool = False,
    nap: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> list[Document]:
    """Restart nodes in turn.

    Args:
        names: of nodes; empty for all that are live.
        stop: has a node end and be started again.
        force: also where scans are refused meanwhile, for no other copy serves.
        limit_s: for each thing that is waited for.

    Returns:
        For each node `node` and `seconds`: until all its copies served again.

    Raises:
        CallerError: there is no such node, or a slice has no other copy.
        RetryableError: something did not happen within the limit.
    """
    known = {str(one["id"]): one for one in admin.call("GET", rest("nodes"))}
    for name in names:
        if name not in known:
            raise CallerError(f"there is no node {name!r}", next_step="`keytide node list` shows them")
    wanted = names or sorted(name for name, one in known.items() if one["live"])
    done: list[Document] = []
    with progress(quiet, counts=False) as bar:
        task = bar.add_task("restarting nodes", total=len(wanted), rate="")
        for name in wanted:

            def waits(why: str, name: str = name) -> None:
                bar.update(task, description=f"node {name}: {why}")

            began = clock()
            if not force:
                _until(partial(_alone, admin, name), waits, limit_s, nap, clock)
            before = _node(admin, name)
            waits("stopping it")
            stop(before)
            _until(partial(_not_back, admin, name, before), waits, limit_s, nap, clock)
            done.append({"node": name, "seconds": round(clock() - began, 1)})
            bar.advance(task)
    return done


def _until(
    why: Callable[[], str],
    waits: Callable[[str], None],
    limit_s: float,
    nap: Callable[[float], None],
    clock: Callable[[], float],
) -> None:
    """Wait until there is nothing to wait for. A coordinator that is away for a moment is waited out."""
    ends, told = clock() + limit_s, ""
    while True:
        try:
            told = why()
        except RetryableError as error:
            told = error.message
        if not told:
            return
        waits(told)
        if clock() > ends:
            raise RetryableError(
                f"not within {limit_s:.0f} s: {told}",
                next_step="see `keytide status`; then go on with the nodes that are left, by name, or with "
                "--force where scans may be refused meanwhile",
            )
        nap(LOOK_S)


def _copies(admin: Admin) -> Iterator[tuple[str, Document]]:
    """(index, copy) of all that count; of each copy `serves`: scans are sent to it, and snapshots wait for it
    (R37)."""
    late = {
        (one["index"], one["slice"], one["node"])
        for keyspace in admin.call("GET", "/v1/stability")["keyspaces"].values()
        for one in keyspace["lagging"]
    }
    for index in admin.call("GET", "/v1/topology")["indexes"]:
        for one in index["slices"]:
            if index["state"] == "READY" and one["counted"]:
                serves = one["live"] and one["state"] == "LIVE" and one["snapshot"] is not None
                lags = (index["id"], one["slice"], one["node"]) in late
                yield index["name"], {**one, "serves": serves and not lags}


def _alone(admin: Admin, node: str) -> str:
    """Which slices no other copy serves of those that a node has, in words; "" for none."""
    _check_scans(admin, node)
    copies: dict[tuple[str, int], dict[str, bool]] = {}
    for index, copy in _copies(admin):
        copies.setdefault((index, int(copy["slice"])), {})[str(copy["node"])] = copy["serves"]
    mine = {place: nodes for place, nodes in copies.items() if node in nodes}
    single = sorted({index for (index, _), nodes in mine.items() if len(nodes) == 1})
    if single:
        raise CallerError(
            f"node {node} has the only copy of slices of {', '.join(single)}: scans that need them would be "
            "refused while it restarts",
            problem_type="only-copy",
            next_step=f"have more copies: ALTER INDEX {single[0]} SET (replicas=1); or restart it all the "
            "same with --force",
        )
    return _told(
        (place for place, nodes in mine.items() if not any(s for one, s in nodes.items() if one != node)),
        "no other copy serves {}",
    )


def _check_scans(admin: Admin, node: str) -> None:
    """See that somebody else answers scans while a node restarts.

    Raises:
        CallerError: nobody does.
    """
    nodes = admin.call("GET", rest("nodes"))
    scan = {one["id"] for one in nodes if one["live"] and has_role(one.get("roles", ()), "scan")}
    if node in scan and len(scan) == 1:
        raise CallerError(
            f"node {node} is the only one that answers scans: all would be refused while it restarts",
            problem_type="only-copy",
            next_step="start another node with the role for scans; or restart it all the same with --force",
        )


def _told(places: Iterable[tuple[str, int]], words: str) -> str:
    """The first few of some slices, in words; "" of none."""
    names = few((f"slice {number} of {index}" for index, number in places), SHOWN)
    return words.format(names) if names else ""


def _node(admin: Admin, name: str) -> Document:
    found: Document = next(one for one in admin.call("GET", rest("nodes")) if one["id"] == name)
    return found


def _not_back(admin: Admin, name: str, before: Document) -> str:
    """What is missing until a node is back as it was, in words."""
    now = _node(admin, name)
    if not now["live"] or now["started_at"] == before["started_at"]:
        return "it has not come back"
    mine = [(index, one) for index, one in _copies(admin) if one["node"] == name]
    late = ((index, int(one["slice"])) for index, one in mine if not one["serves"])
    return _told(late, "it does not serve {} yet")


# --- how a node is stopped ----------------------------------------------------------------------------------


def by_command(command: str) -> Callable[[Document], None]:
    """By a command of the operator's, in which {node} and {host} stand for those."""

    def stop(node: Document) -> None:
        host = urlsplit(str(node["url"])).hostname or ""
        names = {"{node}": str(node["id"]), "{host}": host}
        words = shlex.split(command)
        for name, value in names.items():
            words = [word.replace(name, value) for word in words]
        ended = subprocess.run(words, stdin=subprocess.DEVNULL, check=False)
        if ended.returncode:
            raise CallerError(
                f"{shlex.join(words)} ended with status {ended.returncode}",
                next_step="see what it says; nodes that are done stay so, name those that are left",
            )

    return stop


def under(pid: int) -> Callable[[Document], None]:
    """As a child of the `keytide up` that has this process id, and starts it again."""

    def stop(node: Document) -> None:
        port = urlsplit(str(node["url"])).port
        import psutil  # which help does without

        try:
            for child in psutil.Process(pid).children(recursive=True):
                if any(one.laddr and one.laddr.port == port for one in child.net_connections("inet")):
                    child.terminate()
                    return
        except psutil.Error as error:
            raise CallerError(f"the processes of `keytide up` cannot be seen: {error}") from error
        raise CallerError(
            f"node {node['id']} is none of the processes of `keytide up` with id {pid}",
            next_step="say how it is restarted: --by 'ssh {host} systemctl restart keytide-indexer'",
        )

    return stop
