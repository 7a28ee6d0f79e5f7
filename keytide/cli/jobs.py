"""The commands of jobs: verify, repair, drain and rebalance; and what becomes of them, and of copies."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape

from keytide.cli.admin import AWAY, Admin, duration, left_running, rest, why_ended
from keytide.cli.calls import asks, listed, titled
from keytide.cli.output import details, out, print_json, progress, size
from keytide.cli.sql import at_terminal
from keytide.errors import CallerError

JOB_COLUMNS = (
    "id",
    "kind",
    "indexes",
    "state",
    "percent",
    "documents_done",
    "eta_s",
    "detail",
    "waiting_for",
    "counts",
    "seconds",
    "error",
)
DIFFERENCE_COLUMNS = ("kind", "index", "id", "expected", "found", "version", "reason")
MOVE_COLUMNS = ("index", "slice", "source", "target", "bytes")
SHOWN = 50
"""Differences that a report shows to people unless they ask for more."""
DIFFERS = 4
"""Exit status of a verification that found something wrong."""

WaitOption = Annotated[bool, typer.Option("--wait", help="wait until it is over, with a progress bar")]

job_app = typer.Typer(
    help="Verifications and repairs; copies of slices that are being filled, drains, rebalances.",
    no_args_is_help=True,
)


def add_to(app: typer.Typer, index_app: typer.Typer, node_app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(job_app, name="job")
    asks(index_app, "verify")(index_verify)
    asks(index_app, "repair")(index_repair)
    asks(node_app, "drain")(node_drain)
    asks(node_app, "undrain", lambda _, node: out.print(f"node {node} may have slices again"))(node_undrain)
    asks(app, "rebalance")(rebalance)


def index_verify(admin: Admin, name: str, as_json: bool, wait: WaitOption = False) -> None:
    """Compare an index with its source. With --wait the exit status is 4 when something is wrong."""
    show_job(admin, admin.call("POST", rest("indexes", name, "verify")), wait, as_json)


def index_repair(
    admin: Admin,
    name: str,
    as_json: bool,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="write nothing: only list what would be done")
    ] = False,
    wait: WaitOption = False,
) -> None:
    """Put right what an index has wrong. With --wait the exit status is 4 when something is wrong still."""
    job = admin.call("POST", rest("indexes", name, "repair"), {"dry_run": dry_run})
    show_job(admin, job, wait, as_json)


def node_drain(admin: Admin, node: str, as_json: bool, wait: WaitOption = False) -> None:
    """Move all slices off a node, and place none on it. It may be stopped when that is DONE."""
    show_job(admin, admin.call("POST", rest("nodes", node, "drain")), wait, as_json)


def node_undrain(admin: Admin, node: str) -> Any:
    """Let a node have slices again; what has left it stays away until a rebalance."""
    return admin.call("POST", rest("nodes", node, "undrain"))


def rebalance(
    admin: Admin,
    as_json: bool,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would move")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask before anything moves")] = False,
    wait: Annotated[bool, typer.Option(help="wait until it is over, with a progress bar")] = True,
) -> None:
    """Spread slices over the nodes: show what would move, and move it."""
    if dry_run or not as_json:
        plan = admin.call("POST", "/v1/rebalance", {"dry_run": True})
        if as_json:
            print_json(plan)
        else:
            _show_plan(plan)
        if dry_run or not plan["moves"]:
            return
    if not yes:
        _agree(as_json)
    show_job(admin, admin.call("POST", "/v1/rebalance"), wait, as_json)


def _show_plan(plan: dict[str, Any]) -> None:
    if not plan["moves"]:
        out.print("nothing is to be moved: nodes have about as much")
        return
    listed("Moves", MOVE_COLUMNS)(plan["moves"])
    count = len(plan["moves"])
    out.print(
        f"{count:,} cop{'y moves' if count == 1 else 'ies move'}, {size(plan['bytes'])}", highlight=False
    )


def _agree(as_json: bool) -> None:
    """Ask whoever is at the terminal whether to go on.

    Raises:
        CallerError: nobody is.
        typer.Abort: no.
    """
    if as_json or not at_terminal():
        raise CallerError(
            "nothing was moved: nobody can be asked whether to",
            problem_type="not-confirmed",
            next_step="say --yes to move, or --dry-run to see what would be",
        )
    typer.confirm("Move them?", abort=True, err=True)


def show_job(admin: Admin, job: dict[str, Any], wait: bool, as_json: bool) -> None:
    """Show a job that was started, when it is over if that is wished."""
    if wait:
        job = wait_for_job(admin, job, quiet=as_json)
    if as_json:
        print_json(job)
    else:
        details(f"Job {job['id']}", job)
    if wait and job.get("clean") is False:
        if not as_json:
            out.print(f"keytide job report {job['id']} shows what is wrong")
        raise typer.Exit(DIFFERS)


def wait_for_job(admin: Admin, state: dict[str, Any], quiet: bool = False) -> dict[str, Any]:
    """Follow a job with a progress bar until it is over; its last state. Ctrl-C leaves it alone, and says how
    to watch it.

    Args:
        state: what it said when it was started.

    Raises:
        CallerError: it failed or was cancelled.
        RetryableError: the coordinator has not answered for a while.
    """
    job, reads = str(state["id"]), state["documents_total"] is not None
    ways = f"job show {job}", f"job cancel {job}"
    with left_running(f"{state['kind']} {job}", quiet, *ways), progress(quiet, counts=reads) as bar:
        task = bar.add_task(f"job {job}", total=None, rate="")
        for state in admin.states(rest("jobs", job), lambda: bar.update(task, rate=AWAY)):
            of = ", ".join(state["indexes"]) or job
            done, total = state["percent"], 100 if state["percent"] is not None else None
            if reads:
                done, total = state["documents_done"], state["documents_total"] or None
            bar.update(
                task,
                description=f"{state['kind']} {of} {state['state']}",
                completed=done or 0,
                total=total,
                rate=escape(_doing(state)),
            )
    if state["state"] != "DONE":
        raise CallerError(
            f"job {job} is {state['state']}: {why_ended(state)}",
            problem_type="job-failed",
            next_step=f"see `keytide job show {job}`",
        )
    return state


def _doing(state: dict[str, Any]) -> str:
    """What a job waits for; or what it does, and for how long still, where that is not seen of the bar."""
    if state.get("waiting_for"):
        return f"waits for {state['waiting_for']}"
    left = state["eta_s"] if state["documents_total"] is None else None
    return ", ".join(filter(None, (state["detail"], f"{duration(left)} to go" if left is not None else "")))


@asks(job_app, "list", listed("Jobs", JOB_COLUMNS))
def job_list(admin: Admin) -> Any:
    """All jobs, newest last; copies of slices are among them until they count, drains, and rebalances."""
    return admin.call("GET", "/v1/jobs")


@asks(job_app, "show", titled("Job {job}"))
def job_show(admin: Admin, job: str) -> Any:
    """One job."""
    return admin.call("GET", rest("jobs", job))


@asks(job_app, "cancel", lambda _, job: out.print(f"job {job} is cancelled"))
def job_cancel(admin: Admin, job: str) -> Any:
    """Cancel a job; a build that waits for it fails. The node of a drain may have slices again."""
    return admin.call("POST", rest("jobs", job, "cancel"))


def _copy_rate(text: str) -> int:
    if text == "none":
        return 0
    try:
        return int(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no number of bytes per second, nor none") from error


CopyRate = Annotated[
    int,
    typer.Option(
        "--copy-rate",
        parser=_copy_rate,
        metavar="BYTES_PER_S",
        help="bytes per second of each copy at most; 0 or none: as indexer.copy_rate of its node says",
    ),
]


@asks(job_app, "throttle", titled("Job {job}"))
def job_throttle(admin: Admin, job: str, copy_rate: CopyRate) -> Any:
    """Change how fast copies of slices are filled: a copy, or those of a rebalance or drain, while it
    runs."""
    return admin.call("PATCH", rest("jobs", job), {"copy_rate": copy_rate})


def _show_report(report: dict[str, Any], job: str, **_: Any) -> None:
    hidden = ("differences", "indexes", "offset", "next", "timestamp")
    details(f"Report of job {job}", {name: value for name, value in report.items() if name not in hidden})
    listed("Indexes", ("name", "entries", "unproven", "not_examined", "counts"))(report["indexes"])
    if report["differences"]:
        listed("Differences", DIFFERENCE_COLUMNS)(report["differences"])
    if report.get("next") is not None:
        out.print(f"further ones: keytide job report {job} --offset {report['next']}")


@asks(job_app, "report", _show_report)
def job_report(
    admin: Admin,
    job: str,
    offset: Annotated[int, typer.Option(min=0, help="leave out so many differences")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="differences at most")] = SHOWN,
) -> Any:
    """What a job found: counts, and the differences one by one."""
    return admin.call("GET", rest("jobs", job, "report"), offset=offset, limit=limit)
