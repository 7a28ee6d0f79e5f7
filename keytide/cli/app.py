"""The commands (docs/reference). Each is a thin layer over one REST call; `--json` prints what the server
said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from keytide.cli import jobs, lists, rolling
from keytide.cli import rendering as looks
from keytide.cli.admin import Admin, coordinator, rest
from keytide.cli.calls import asks, listed, titled
from keytide.cli.data_folder import running_pid
from keytide.cli.nodes import reader
from keytide.cli.options import (
    DEFAULT_DATA_DIR,
    DataDir,
    JsonOption,
    Url,
    check_alone,
    json_file,
    look_s,
    set_give_up_s,
)
from keytide.cli.output import details, err, friendly_errors, out, print_json, table
from keytide.cli.plug_ins import CommandGroup
from keytide.cli.scan import scan
from keytide.cli.sql import sql
from keytide.errors import CallerError, KeytideError, RetryableError

app = typer.Typer(
    name="keytide",
    cls=CommandGroup,
    help="Secondary indexes over change streams in Kafka, scanned at one consistent moment.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
index_app = typer.Typer(help="Indexes.", no_args_is_help=True)
build_app = typer.Typer(help="Builds of indexes.", no_args_is_help=True)
node_app = typer.Typer(help="Indexer nodes.", no_args_is_help=True)
app.callback()(set_give_up_s)
app.add_typer(index_app, name="index")
app.add_typer(build_app, name="build")
app.add_typer(node_app, name="node")
jobs.add_to(app, index_app, node_app)
app.command()(sql)
app.command()(scan)
lists.add_to(index_app)

INDEX_COLUMNS = (
    "name",
    "keyspace",
    "state",
    "slices",
    "entries",
    "bytes",
    "skipped",
    "lag_documents",
    "snapshot",
    "lost",
)
BUILD_COLUMNS = (
    "id",
    "indexes",
    "state",
    "phase",
    "documents_done",
    "documents_total",
    "percent",
    "rate",
    "eta_s",
    "paused",
    "error",
)
NODE_COLUMNS = (
    "id",
    "url",
    "zone",
    "roles",
    "protocol",
    "live",
    "drain",
    "slices",
    "leaving",
    "stopped",
    "lost",
    "entries",
    "memory",
    "disk_free",
)


def _indexes(path: str, url: str | None, data_dir: Path, name: str = "") -> Any:
    """What the coordinator says of all indexes, or of one; while it does not answer, what a node knows."""
    try:
        with coordinator(url, data_dir, look_s()) as admin:
            return admin.call("GET", path)
    except RetryableError as silence:
        try:
            with reader(None, url, data_dir) as client:
                known = client.indexes()
        except KeytideError:
            raise silence from None
        err.print(
            f"{silence.message}: this is what a node knows", style="yellow", highlight=False, markup=False
        )
        found = [msgspec.to_builtins(one) for one in known if name in ("", one.name)]
        if name and not found:
            raise CallerError(
                f"no node knows an index {name}", next_step="see `keytide index list`"
            ) from None
        return found[0] if name else found


@index_app.command("list")
def index_list(url: Url = None, data_dir: DataDir = DEFAULT_DATA_DIR, as_json: JsonOption = False) -> None:
    """All indexes; while no coordinator answers, what a node knows of them."""
    with friendly_errors(as_json):
        rows = _indexes("/v1/indexes", url, data_dir)
        if as_json:
            print_json(rows)
        else:
            columns = [one for one in INDEX_COLUMNS if not rows or one in rows[0]]
            table("Indexes", columns, [looks.cells(row, columns) for row in rows])


@index_app.command("show")
def index_show(
    name: str, url: Url = None, data_dir: DataDir = DEFAULT_DATA_DIR, as_json: JsonOption = False
) -> None:
    """One index, and each of its slices; while no coordinator answers, what a node knows of it."""
    with friendly_errors(as_json):
        document = _indexes(rest("indexes", name), url, data_dir, name)
        if as_json:
            print_json(document)
        else:
            looks.show_index(document)


@asks(index_app, "build", lambda build, **_: details(f"Build {build['id']}", build))
def index_build(
    admin: Admin,
    names: list[str],
    rate: Annotated[int | None, typer.Option(help="documents per second at most")] = None,
    origin: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="JSON file that describes a table to begin with (docs/initial-state.md)",
        ),
    ] = None,
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify",
            help="whether the indexes answer only when they are verified (setting build.verify)",
            show_default=False,
        ),
    ] = None,
    verify_full: Annotated[
        bool, typer.Option("--verify-full", help="verify them by a second read of the source, not by sums")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="wait until it is over, with a progress bar")] = False,
    as_json: bool = False,
) -> Any:
    """Build deferred indexes of one keyspace together, reading the source once."""
    if verify_full:
        check_alone("--verify-full", "give one of them", no_verify=verify is False)
    body: dict[str, Any] = {"indexes": names}
    if rate is not None:
        body["rate_limit"] = rate
    if origin is not None:
        body["origin"] = json_file(origin)
    if verify is not None or verify_full:
        body["verify"] = "full" if verify_full else verify
    build = admin.call("POST", "/v1/builds", body)
    return admin.wait_for_build(build["id"], quiet=as_json) if wait else build


@asks(index_app, "drop", lambda _, name: out.print(f"index {name} is being dropped"))
def index_drop(admin: Admin, name: str) -> Any:
    """Drop an index; a build of it is cancelled."""
    admin.call("DELETE", rest("indexes", name))
    return {"dropped": name}


@asks(build_app, "list", listed("Builds", BUILD_COLUMNS))
def build_list(admin: Admin) -> Any:
    """All builds, newest last."""
    return admin.call("GET", "/v1/builds")


@asks(build_app, "show", titled("Build {build}"))
def build_show(admin: Admin, build: str) -> Any:
    """One build."""
    return admin.call("GET", rest("builds", build))


@asks(build_app, "cancel", lambda _, build: out.print(f"build {build} is cancelled"))
def build_cancel(admin: Admin, build: str) -> Any:
    """Cancel a build."""
    return admin.call("POST", rest("builds", build, "cancel"))


@asks(build_app, "wait", titled("Build {build}"))
def build_wait(admin: Admin, build: str, as_json: bool) -> Any:
    """Follow a build with a progress bar until it is over."""
    return admin.wait_for_build(build, quiet=as_json)


def _show_steered(state: dict[str, Any], **_: Any) -> None:
    limit = f", at most {state['rate_limit']:,} documents/s" if state.get("rate_limit") else ""
    why = f": {state['paused']}" if state.get("paused") else ""
    out.print(f"build {state['id']} is {state['state']}{limit}{why}", markup=False, highlight=False)


@asks(build_app, "pause", _show_steered)
def build_pause(admin: Admin, build: str) -> Any:
    """Have a build pause until it is resumed; what is done is kept."""
    return admin.call("POST", rest("builds", build, "pause"))


@asks(build_app, "resume", _show_steered)
def build_resume(admin: Admin, build: str) -> Any:
    """Have a build go on."""
    return admin.call("POST", rest("builds", build, "resume"))


@asks(build_app, "throttle", _show_steered)
def build_throttle(
    admin: Admin,
    build: str,
    rate: Annotated[int, typer.Argument(min=0, help="documents per second at most; 0 for no limit")],
) -> Any:
    """Change how fast a build may read, while it runs."""
    return admin.call("PATCH", rest("builds", build), {"rate_limit": rate or None})


@asks(node_app, "list", listed("Nodes", NODE_COLUMNS))
def node_list(admin: Admin) -> Any:
    """All indexer nodes."""
    return admin.call("GET", "/v1/nodes")


@asks(node_app, "restart", listed("Restarted", ("node", "seconds")))
def node_restart(
    admin: Admin,
    as_json: bool,
    data_dir: Path,
    names: Annotated[list[str] | None, typer.Argument(help="nodes, in this order; all without")] = None,
    by: Annotated[
        str,
        typer.Option(
            help="command that restarts a node: {node} and {host} stand for its name and its address, as in "
            "'ssh {host} systemctl restart keytide-indexer'; without, those of the local `keytide up`"
        ),
    ] = "",
    force: Annotated[
        bool, typer.Option("--force", help="also where no other copy serves: scans are refused meanwhile")
    ] = False,
    limit: Annotated[float, typer.Option(min=1, help="seconds for each thing that is waited for")] = 300,
) -> Any:
    """Restart indexer nodes one after the other: each when other copies serve all that it has, and the next
    one when all of its copies serve again."""
    if by:
        stop = rolling.by_command(by)
    elif (pid := running_pid(data_dir)) is not None:
        stop = rolling.under(pid)
    else:
        raise CallerError(
            f"no `keytide up` runs on {data_dir}, so nodes cannot be restarted from here",
            problem_type="no-cluster",
            next_step="say how a node is restarted: --by 'ssh {host} systemctl restart keytide-indexer'",
        )
    return rolling.restart(admin, names or [], stop, force=force, limit_s=limit, quiet=as_json)


@asks(app)
def status(admin: Admin, as_json: bool) -> None:
    """The cluster at a glance: its health with what to do, coordinators, stability timestamps, rollbacks,
    indexes, slices in trouble, builds, nodes. Exit status 1 unless all is well."""
    verdict, coordinators = admin.health(), admin.coordinators()
    if not as_json:
        looks.show_health(verdict)
    parts = {name: admin.call("GET", rest(name)) for name in ("stability", "indexes", "builds", "nodes")}
    if as_json:
        print_json({"health": verdict.as_json(), "coordinators": coordinators, **parts})
    else:
        if len(coordinators) > 1:
            listed("Coordinators", ("url", "state"))(coordinators)
        looks.show_stability(parts["stability"])
        listed("Indexes", INDEX_COLUMNS)(parts["indexes"])
        looks.show_troubles(admin.call("GET", "/v1/topology"))
        listed("Builds", BUILD_COLUMNS)(parts["builds"])
        listed("Nodes", NODE_COLUMNS)(parts["nodes"])
    raise typer.Exit(0 if verdict.well else 1)


@asks(app, show=lambda answer: out.print(answer["message"], highlight=False))
def upgrade(admin: Admin) -> Any:
    """Use the newest version of the protocol, when everybody is upgraded, gateways too: what needs it works
    then, and nobody can go back to the release before."""
    return admin.call("POST", rest("cluster", "upgrade"))


@asks(app, show=looks.show_topology)
def topology(admin: Admin) -> Any:
    """Which node holds which slice, and how each of them is."""
    return admin.call("GET", "/v1/topology")


@asks(app)
def events(
    admin: Admin,
    as_json: bool,
    follow: Annotated[bool, typer.Option("--follow", help="go on until Ctrl-C")] = False,
) -> None:
    """What happened lately, oldest first; with --json a JSON array, or one line per event with --follow."""
    if as_json and not follow:
        print_json(admin.call("GET", "/v1/events"))
        return
    for line in admin.events(follow):
        if as_json:
            print(json.dumps(line, ensure_ascii=False), flush=True)
        else:
            looks.show_event(line)
