"""The coordinator's REST API (CONTRACT §4) for the command, and how the command finds the cluster.

Where: `--url`, else `KEYTIDE_URL`, else the cluster that `keytide up` keeps in the data folder, else the
default port.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx

from keytide.cli.output import progress
from keytide.client import problem_error
from keytide.errors import CallerError, RetryableError

DEFAULT_URL = "http://127.0.0.1:8091"
AWAY_LIMIT_S = 60.0
"""How long a coordinator may be away while a build is waited for."""
FOLLOW_S = 1.0
"""Between looks at the events."""
EVENTS_AT_ONCE = 1_000
FINISHED = frozenset({"READY", "FAILED", "CANCELLED"})


def find_url(url: str | None, data_dir: Path) -> str:
    """The coordinator's URL."""
    if url or os.environ.get("KEYTIDE_URL"):
        return url or os.environ["KEYTIDE_URL"]
    try:
        state = json.loads((data_dir / "cluster.json").read_text())
        return str(state["coordinator"])
    except (OSError, ValueError, KeyError):
        return DEFAULT_URL


def api_token() -> str:
    """The token that the command sends, "" for none."""
    return os.environ.get("KEYTIDE_TOKEN", "")


class Admin:
    """Calls the coordinator.

    Args:
        url: its address.
        token: API token; what `KEYTIDE_TOKEN` says when "".
    """

    def __init__(self, url: str, token: str = "") -> None:
        token = token or api_token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.url = url
        try:
            self._http = httpx.Client(base_url=url, headers=headers, timeout=60)
        except httpx.InvalidURL as error:
            raise CallerError(
                f"{url!r} is not an address: {error}", next_step="give one like http://127.0.0.1:8091"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """The answer's JSON.

        Raises:
            RetryableError: the coordinator does not answer.
            KeytideError: its problem document.
        """
        wanted = {name: value for name, value in query.items() if value is not None}
        try:
            response = self._http.request(method, path, json=body, params=wanted)
        except httpx.TransportError as error:
            raise RetryableError(
                f"no coordinator answers at {self.url}: {error}",
                next_step="start a cluster with `keytide up`, or say where it is with --url",
            ) from error
        if not response.is_success:
            raise problem_error(response)
        try:
            return response.json() if response.content else None
        except ValueError as error:
            raise CallerError(
                f"what answers at {self.url} is not a coordinator",
                problem_type="not-a-coordinator",
                next_step="say where it is with --url; `keytide up` prints it",
            ) from error

    def node_url(self) -> str:
        """The scan endpoint of some live node."""
        return self.node_urls()[0]

    def node_urls(self) -> list[str]:
        """The scan endpoints of all live nodes.

        Raises:
            RetryableError: there are none.
        """
        nodes = [node for node in self.call("GET", "/v1/nodes") if node.get("live", True)]
        if not nodes:
            raise RetryableError(
                "no indexer node is alive", next_step="see `keytide node list` and the nodes' logs"
            )
        return [str(node["url"]) for node in nodes]

    def events(self, follow: bool) -> Iterator[dict[str, Any]]:
        """What happened lately, oldest first; with `follow` for ever, each event once.

        Raises:
            RetryableError: the coordinator did not answer the first time; later it is waited for.
        """
        told = (0, 0)  # numbers begin anew in each term
        lines = self.call("GET", "/v1/events")
        while True:
            for line in lines:
                if (line["term"], line["number"]) > told:
                    told = (line["term"], line["number"])
                    yield line
            if not follow:
                return
            time.sleep(FOLLOW_S)
            try:
                lines = self.call("GET", "/v1/events", limit=EVENTS_AT_ONCE)
            except RetryableError:  # a coordinator that is started again
                lines = []

    def wait_for_build(self, build: str, quiet: bool = False) -> dict[str, Any]:
        """Follow a build with a progress bar until it is over; its last state.

        Raises:
            CallerError: it failed or was cancelled.
            RetryableError: the coordinator has not answered for a while.
        """
        heard = time.monotonic()
        with progress(quiet) as bar:
            task = bar.add_task(f"build {build}", total=None, rate="")
            while True:
                try:
                    state: dict[str, Any] = self.call("GET", f"/v1/builds/{build}")
                except RetryableError:  # a coordinator that is started again; the build goes on
                    if time.monotonic() > heard + AWAY_LIMIT_S:
                        raise
                    bar.update(task, rate="waiting for the coordinator")
                    time.sleep(0.5)
                    continue
                heard = time.monotonic()
                rate = f"{state['rate']:,.0f} documents/s" if state.get("rate") else ""
                bar.update(
                    task,
                    description=f"{', '.join(state['indexes'])} {state['state']}",
                    completed=state.get("documents_done") or 0,
                    total=state.get("documents_total") or None,
                    rate=rate,
                )
                if state["state"] in FINISHED:
                    break
                time.sleep(0.2)
        if state["state"] != "READY":
            raise CallerError(
                f"build {build} is {state['state']}: {state.get('error') or 'no reason given'}",
                problem_type="build-failed",
                next_step=f"see `keytide build show {build}`",
            )
        return state
