"""Which nodes a read asks. The coordinator is not needed for reads, so it is asked for nodes last.

Where: `--node`, else `KEYTIDE_NODES` (with commas); else the nodes of the cluster that `keytide up` keeps in
the data folder, unless `--url` or `KEYTIDE_URL` names another cluster; else those that the coordinator names.
The first that says it can answer is asked first: one that is gone, or stands still, costs a moment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from keytide.cli.admin import api_token, coordinator, tls_authority
from keytide.cli.data_folder import running_state
from keytide.cli.options import DEFAULT_DATA_DIR, give_up_s, look_s
from keytide.client import Client
from keytide.errors import KeytideError, RetryableError
from keytide.http.tls import trusted
from keytide.model.roles import has_role

if TYPE_CHECKING:
    import httpx

_READY_S: Final = 1.0
"""For a node to say that it can answer."""


def reader(node: str | None, url: str | None, data_dir: Path, timeout_ms: int | None = None) -> Client:
    """A client of nodes that answer.

    Args:
        timeout_ms: the longest wait that a request asks for, if it does.

    Raises:
        KeytideError: no node is known, or none answers.
    """
    limit = max(give_up_s(), 0 if timeout_ms is None else timeout_ms / 1000 + _READY_S)
    urls = node_urls(node, url, data_dir)
    return Client(urls, token=api_token(), answer_s=limit, tls_authority=tls_authority(*urls))


def node_urls(node: str | None, url: str | None, data_dir: Path) -> list[str]:
    """Scan endpoints, the first one known to answer.

    Raises:
        KeytideError: none is known, or none answers.
    """
    if node:
        return [node]
    refused: list[str] = []
    silence: KeytideError | None = None
    for known in _sources(url, data_dir):
        if isinstance(known, KeytideError):
            silence = known
            continue
        silent: list[str] = []
        for at, one in enumerate(known):
            ready = _ready(one)
            if ready:
                return [one, *known[at + 1 :], *silent]
            (refused if ready is None else silent).append(one)
        if silent:
            return silent  # slow, perhaps: they get the time that there is
    if not refused and silence is not None:
        raise silence
    raise RetryableError(
        f"no indexer node answers; asked: {', '.join(dict.fromkeys(refused))}"
        + (f" ({silence.message})" if silence is not None else ""),
        problem_type="node-unavailable",
        next_step="see `keytide status` and the nodes' logs, or name a node with --node or KEYTIDE_NODES",
    )


def _sources(url: str | None, data_dir: Path) -> Iterator[list[str] | KeytideError]:
    """Lists of nodes, from who needs to be asked least."""
    listed = [one.strip() for one in os.environ.get("KEYTIDE_NODES", "").split(",") if one.strip()]
    if listed:
        yield listed
        return
    if not url and not os.environ.get("KEYTIDE_URL"):
        yield _of_folder(data_dir)
    try:
        with coordinator(url, data_dir, look_s()) as admin:
            yield admin.node_urls()
    except KeytideError as error:
        yield error


def _of_folder(data_dir: Path) -> list[str]:
    """The nodes of the cluster that runs on a data folder.

    Raises:
        CallerError: none does.
    """
    state = running_state(data_dir, DEFAULT_DATA_DIR) or {}
    return [str(one) for one in state.get("nodes", ())]


def _ready(url: str) -> bool | None:
    """Whether a node says that it can answer scans; None when there is none that ever would."""
    import httpx  # which help does without

    try:
        found = httpx.get(f"{url.rstrip('/')}/readyz", timeout=_READY_S, verify=trusted(tls_authority(url)))
    except (httpx.ConnectError, httpx.UnsupportedProtocol, httpx.InvalidURL):
        return None
    except httpx.HTTPError:
        return False
    return found.is_success if _scans(found) else None


def _scans(found: httpx.Response) -> bool:
    """Whether a node has the role for scans. (One that does not say has.)"""
    try:
        said = found.json()
    except ValueError:
        return True
    roles = said.get("roles") if isinstance(said, dict) else None
    return not isinstance(roles, list) or has_role(map(str, roles), "scan")
