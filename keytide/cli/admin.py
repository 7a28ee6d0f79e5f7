"""The coordinator's REST API (docs/reference) for the command, and how the command finds the cluster.

Where: `--url`, else `KEYTIDE_URL`, else the cluster that `keytide up` keeps in the data folder, else the
default port. Where there are several coordinators any of them may be asked, and another one is when that one
does not answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
from rich.markup import escape

from keytide.cli.data_folder import running_state
from keytide.cli.options import DEFAULT_DATA_DIR, GIVE_UP_LATER, give_up_s
from keytide.cli.output import err, progress, readable
from keytide.client import problem_error
from keytide.client.protocol.requests import in_path
from keytide.errors import CallerError, RetryableError
from keytide.http.bearer import bearer
from keytide.http.tls import trusted
from keytide.model.health import Verdict, read
from keytide.model.roles import has_role

if TYPE_CHECKING:
    import httpx

CERTIFICATE_STEP = (
    "name who signed it in `security.tls_authority` (KEYTIDE_SECURITY__TLS_AUTHORITY), renew it when it has "
    "expired, and use an address that it names"
)
DEFAULT_URL = "http://127.0.0.1:8091"
AWAY_LIMIT_S = 60.0
"""How long a coordinator may be away while a build or job is waited for, once it has told of it."""
AWAY = "waiting for the coordinator"
FOLLOW_S = 1.0
"""Between looks at the events."""
EVENTS_AT_ONCE = 1_000
FINISHED = frozenset({"READY", "DONE", "FAILED", "CANCELLED"})
"""States of builds and jobs that are over."""


def find_urls(url: str | None, data_dir: Path) -> list[str]:
    """Where coordinators answer.

    Args:
        url: what the user says: one, or several with commas between them.

    Raises:
        CallerError: the data folder has no cluster that runs, or the user names none.
    """
    if said := url or os.environ.get("KEYTIDE_URL"):
        if urls := [one.strip() for one in said.split(",") if one.strip()]:
            return urls
        raise CallerError(
            "--url (or KEYTIDE_URL) names no coordinator", next_step="give one as in http://127.0.0.1:8091"
        )
    state = running_state(data_dir, DEFAULT_DATA_DIR) or {}
    return [str(one) for one in state.get("coordinators") or [state.get("coordinator", DEFAULT_URL)]]


def rest(*parts: str) -> str:
    """The path of something in the API (as `keytide.client.protocol.requests.in_path`)."""
    return "/v1/" + "/".join(map(in_path, parts))


def tls_authority(*urls: str) -> str:
    """Who the command trusts to sign certificates (`security.tls_authority`). Settings are read only when
    one of the addresses needs it.

    Raises:
        ConfigurationError: the settings are wrong.
    """
    if not any(url.lower().startswith("https:") for url in urls):
        return ""
    from keytide.settings.settings import load_settings

    return load_settings().security.tls_authority


def api_token() -> str:
    """The token that the command sends, "" for none."""
    return os.environ.get("KEYTIDE_TOKEN", "")


def build_words(state: Mapping[str, Any]) -> str:
    """What a build does now, at which rate, and for how long still; or what it waits for."""
    if state.get("paused"):
        return f"pauses: {state['paused']}"
    words = [str(state["phase"])] if state.get("phase") else []
    if state.get("state") == "BACKFILL" and state.get("documents_total"):
        words.append(f"{state['documents_done']:,} of {state['documents_total']:,} documents")
    if state.get("rate"):
        words.append(f"{state['rate']:,.0f} documents/s")
    if state.get("eta_s") is not None:
        words.append(f"{duration(state['eta_s'])} to go")
    if state.get("waiting_for"):
        words.append(f"waits for {state['waiting_for']}")
    return ", ".join(words)


def why_ended(state: Mapping[str, Any]) -> str:
    """Why a build or job ended without its result, and when. (Earlier releases kept no reason with builds
    that were cancelled.)"""
    reason = state.get("error") or ("cancelled" if state["state"] == "CANCELLED" else "no reason given")
    at = readable("finished_at", state.get("finished_at"))
    return f"{reason} ({at})" if at else reason


def duration(seconds: float) -> str:
    """Seconds as people say them: 42 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


@contextmanager
def left_running(what: str, quiet: bool, watch: str, end: str) -> Iterator[None]:
    """Say, when whoever waits for something goes away, that it goes on.

    Args:
        watch, end: the commands that show it again, and end it.
    """
    try:
        yield
    except KeyboardInterrupt:
        if not quiet:
            err.print(
                f"{what} goes on; `keytide {watch}` shows it again, `keytide {end}` ends it",
                highlight=False,
            )
        raise


def coordinator(url: str | None, data_dir: Path, seconds: float | None = None) -> Admin:
    """The coordinator for a command.

    Args:
        seconds: how long it may take to answer; None until the command gives up.
    """
    return Admin(find_urls(url, data_dir), seconds=give_up_s() if seconds is None else seconds)


HEALTH_PATH = "/v1/health"
"""Answered with a verdict also when its status is 503."""


LEADS: Final = "leads"
NO_ANSWER: Final = "does not answer"
STANDS_BY: Final = "coordinator-stands-by"
SILENT: Final = "coordinator-silent"


def _shown(seconds: float | None) -> str:
    return f"{round(seconds or 0, 2):g}"


class NotReachedError(RetryableError):
    """A coordinator has not got what it was to be asked."""


class Admin:
    """Calls a coordinator, whichever of several answers.

    Args:
        url: its address; of several coordinators a list.
        token: API token; what `KEYTIDE_TOKEN` says when "".
        seconds: how long an answer may take.
    """

    def __init__(self, url: str | Sequence[str], token: str = "", seconds: float = 60.0) -> None:
        import httpx  # which help does without, as it does below

        token = token or api_token()
        self._urls = [url] if isinstance(url, str) else list(url)
        self._seconds = seconds
        self._clients: list[httpx.Client] = []
        trust = trusted(tls_authority(*self._urls))
        try:
            for one in self._urls:
                client = httpx.Client(base_url=one, headers=bearer(token), timeout=seconds, verify=trust)
                self._clients.append(client)
        except httpx.InvalidURL as error:
            raise CallerError(
                f"{one!r} is not an address: {error}", next_step="give one like http://127.0.0.1:8091"
            ) from error

    @property
    def url(self) -> str:
        """Who is asked next."""
        return self._urls[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """The answer's JSON. Of several coordinators another one is asked where it is certain that the first
        has done nothing, or where nothing was to be done.

        Raises:
            RetryableError: no coordinator answers, or none leads.
            KeytideError: its problem document.
        """
        import httpx

        wanted = {name: value for name, value in query.items() if value is not None}
        deadline = time.monotonic() + self._seconds
        failed: list[RetryableError] = []
        for left in range(len(self._urls), 0, -1):
            whole = max(deadline - time.monotonic(), 0.1)
            limit = httpx.Timeout(whole / left if method == "GET" else whole, connect=whole / left)
            try:
                return self._ask(method, path, body, wanted, limit)
            except RetryableError as error:
                reached = not isinstance(error, NotReachedError)
                if reached and error.problem_type not in (STANDS_BY, SILENT):
                    raise  # the leader's word
                failed.append(error)
                self._urls.append(self._urls.pop(0))  # the next call does not begin with it, either
                self._clients.append(self._clients.pop(0))
                if reached and error.problem_type == SILENT and method != "GET":
                    break  # it may have been done
        raise min(failed, key=lambda error: isinstance(error, NotReachedError))

    def _ask(self, method: str, path: str, body: Any, wanted: Mapping[str, Any], limit: httpx.Timeout) -> Any:
        import httpx

        try:
            response = self._clients[0].request(method, path, json=body, params=wanted or None, timeout=limit)
        except httpx.ConnectTimeout as error:
            raise NotReachedError(
                f"no connection to the coordinator at {self.url} within {_shown(limit.connect)} s",
                problem_type=SILENT,
                next_step=f"see `keytide doctor`; {GIVE_UP_LATER}",
            ) from error
        except httpx.TimeoutException as error:
            raise RetryableError(
                f"the coordinator at {self.url} did not answer within {_shown(limit.read)} s",
                problem_type=SILENT,
                next_step=("" if method == "GET" else "look whether it was done all the same, then ")
                + f"see `keytide doctor`; {GIVE_UP_LATER}",
            ) from error
        except httpx.TransportError as error:
            reached = not isinstance(error, httpx.ConnectError) and method != "GET"
            raise (RetryableError if reached else NotReachedError)(
                f"no coordinator answers at {self.url}: {error}",
                next_step=CERTIFICATE_STEP
                if "CERTIFICATE_VERIFY_FAILED" in str(error)
                else "start a cluster with `keytide up`, or say where it is with --url",
            ) from error
        if not response.is_success and not (path == HEALTH_PATH and response.status_code == 503):
            raise problem_error(response)
        try:
            return response.json() if response.content else None
        except ValueError as error:
            raise self._no_coordinator() from error

    def health(self) -> Verdict:
        """The cluster's health, as the coordinator judges it. Raises as `call`."""
        try:
            return read(self.call("GET", HEALTH_PATH))
        except msgspec.ValidationError as error:
            raise self._no_coordinator() from error

    def coordinators(self) -> list[dict[str, str]]:
        """The address of each coordinator that is known here, with what it does."""
        import httpx

        found = {}
        for url, client in zip(self._urls, self._clients, strict=True):
            try:
                term = client.get("/readyz", timeout=self._seconds / len(self._urls)).json()["term"]
                found[url] = LEADS if term else "stands by"
            except (httpx.HTTPError, ValueError, KeyError, TypeError):
                found[url] = NO_ANSWER
        return [{"url": url, "state": found[url]} for url in sorted(found)]

    def _no_coordinator(self) -> CallerError:
        return CallerError(
            f"what answers at {self.url} is not a coordinator",
            problem_type="not-a-coordinator",
            next_step="say where it is with --url; `keytide up` prints it",
        )

    def node_url(self) -> str:
        """The scan endpoint of some live node."""
        return self.node_urls()[0]

    def node_urls(self) -> list[str]:
        """The scan endpoints of all live nodes that answer scans.

        Raises:
            RetryableError: there are none.
        """
        nodes = [node for node in self.call("GET", "/v1/nodes") if node.get("live", True)]
        scan = [node for node in nodes if has_role(node.get("roles", ()), "scan")]
        if not scan:
            raise RetryableError(
                "no indexer node is alive" + (" that has the role scan" if nodes else ""),
                next_step="see `keytide node list` and the nodes' logs",
            )
        return [str(node["url"]) for node in scan]

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

    def states(self, path: str, away: Callable[[], None]) -> Iterator[dict[str, Any]]:
        """What a build or a job says, again and again; the last one is that it is over.

        Args:
            path: of the build or job.
            away: is called while no coordinator answers, when one is started again, say.

        Raises:
            RetryableError: the coordinator has not answered for a while.
        """
        heard, limit = time.monotonic(), give_up_s()
        while True:
            try:
                state: dict[str, Any] = self.call("GET", path)
            except RetryableError:
                left = heard + limit - time.monotonic()
                if left < 0:
                    raise
                away()
                time.sleep(min(0.5, max(0.01, left)))
                continue
            heard, limit = time.monotonic(), AWAY_LIMIT_S
            yield state
            if state["state"] in FINISHED:
                return
            time.sleep(0.2)

    def wait_for_build(self, build: str, quiet: bool = False) -> dict[str, Any]:
        """Follow a build with a progress bar until it is over; its last state. Ctrl-C leaves the build
        alone, and says how to watch it again.

        Raises:
            CallerError: it failed or was cancelled.
            RetryableError: the coordinator has not answered for a while.
        """
        state: dict[str, Any] = {}
        ways = f"build wait {build}", f"build cancel {build}"
        with left_running(f"build {build}", quiet, *ways), progress(quiet, counts=False) as bar:
            task = bar.add_task(f"build {build}", total=None, rate="")
            for state in self.states(rest("builds", build), lambda: bar.update(task, rate=AWAY)):
                bar.update(
                    task,
                    description=f"{', '.join(state['indexes'])} {state['state']}",
                    completed=state.get("percent") or 0,
                    total=100 if state.get("percent") else None,
                    rate=escape(build_words(state)),
                )
        if state["state"] != "READY":
            raise CallerError(
                f"build {build} is {state['state']}: {why_ended(state)}",
                problem_type="build-failed",
                next_step=f"see `keytide build show {build}`",
            )
        return state
