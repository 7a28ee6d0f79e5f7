"""The commands of jobs: `index verify`, what becomes of verifications and repairs, and of copies."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from keytide.cli.admin import AWAY, Admin, rest, why_ended
from keytide.cli.calls import asks, listed, titled
from keytide.cli.output import facts, out, print_json, progress
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
SHOWN = 50
"""Differences that a report shows to people unless they ask for more."""
DIFFERS = 4
"""Exit status of a verification that found something wrong."""

Wait = Annotated[bool, typer.Option("--wait", help="wait until it is over, with a progress bar")]

job_app = typer.Typer(
    help="Verifications and repairs, and copies of slices that are being filled.", no_args_is_help=True
)


def add_to(app: typer.Typer, index_app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(job_app, name="job")
    asks(index_app, "verify")(index_verify)
    asks(index_app, "repair")(index_repair)


def index_verify(admin: Admin, name: str, as_json: bool, wait: Wait = False) -> None:
    """Compare an index with its source. With --wait the exit status is 4 when something is wrong."""
    show_job(admin, admin.call("POST", rest("indexes", name, "verify")), wait, as_json)


def index_repair(
    admin: Admin,
    name: str,
    as_json: bool,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="write nothing: only list what would be done")
    ] = False,
    wait: Wait = False,
) -> None:
    """Put right what an index has wrong. With --wait the exit status is 4 when something is wrong still."""
    job = admin.call("POST", rest("indexes", name, "repair"), {"dry_run": dry_run})
    show_job(admin, job, wait, as_json)


def show_job(admin: Admin, job: dict[str, Any], wait: bool, as_json: bool) -> None:
    """Show a job that was started, when it is over if that is wished."""
    if wait:
        job = wait_for_job(admin, str(job["id"]), quiet=as_json)
    if as_json:
        print_json(job)
    else:
        facts(f"Job {job['id']}", job)
    if wait and job.get("clean") is False:
        if not as_json:
            out.print(f"keytide job report {job['id']} shows what is wrong")
        raise typer.Exit(DIFFERS)


def wait_for_job(admin: Admin, job: str, quiet: bool = False) -> dict[str, Any]:
    """Follow a job with a progress bar until it is over; its last state.

    Raises:
        CallerError: it failed or was cancelled.
        RetryableError: the coordinator has not answered for a while.
    """
    state: dict[str, Any] = {}
    with progress(quiet) as bar:
        task = bar.add_task(f"job {job}", total=None, rate="")
        for state in admin.states(rest("jobs", job), lambda: bar.update(task, rate=AWAY)):
            doing = state.get("waiting_for") or state.get("detail") or ""
            bar.update(
                task,
                description=f"{state['kind']} {', '.join(state['indexes'])} {state['state']}",
                completed=state.get("documents_done") or 0,
                total=state.get("documents_total") or None,
                rate=doing,
            )
    if state["state"] != "DONE":
        raise CallerError(
            f"job {job} is {state['state']}: {why_ended(state)}",
            problem_type="job-failed",
            next_step=f"see `keytide job show {job}`",
        )
    return state


@asks(job_app, "list", listed("Jobs", JOB_COLUMNS))
def job_list(admin: Admin) -> Any:
    """All jobs, newest last; copies of slices are among them until they count."""
    return admin.call("GET", "/v1/jobs")


@asks(job_app, "show", titled("Job {job}"))
def job_show(admin: Admin, job: str) -> Any:
    """One job."""
    return admin.call("GET", rest("jobs", job))


@asks(job_app, "cancel", lambda _, job: out.print(f"job {job} is cancelled"))
def job_cancel(admin: Admin, job: str) -> Any:
    """Cancel a job; a build that waits for it fails."""
    return admin.call("POST", rest("jobs", job, "cancel"))


def _show_report(report: dict[str, Any], job: str, **_: Any) -> None:
    hidden = ("differences", "indexes", "offset", "next", "timestamp")
    facts(f"Report of job {job}", {name: value for name, value in report.items() if name not in hidden})
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
