"""`up`, `down`, `demo`, `doctor`: what needs this machine's own parts. `deploy` is imported only when one of
them is called, so that the command works where only the client is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keytide.cli.options import DATA_DIR_VARIABLE, DEFAULT_DATA_DIR, DataDir, Json
from keytide.cli.output import friendly_errors


def up(
    data_dir: Annotated[
        Path, typer.Option(envvar=DATA_DIR_VARIABLE, help="kept across restarts")
    ] = DEFAULT_DATA_DIR,
    kafka: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="a running Kafka instead of the embedded one")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="indexer nodes", show_default="as before, else 2")
    ] = None,
    projectors: Annotated[
        int | None, typer.Option(min=1, help="projector processes", show_default="as before, else 1")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="cluster name: prefix of its topics", show_default="as before, else keytide"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            help="coordinator: admin API and web page (0: a free one)",
            show_default="as before, else 8091",
        ),
    ] = None,
    node_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            help="first node's scan endpoint; the others follow",
            show_default="as before, else 8093",
        ),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="go on in the background")] = False,
    as_json: Json = False,
) -> None:
    """Start a local cluster and keep it running until Ctrl-C (or `keytide down`). A data folder remembers its
    cluster: sizes, ports and Kafka are those of its last start unless they are given."""
    from deploy.up import UpOptions, run
    from deploy.up import detach as start_detached

    options = UpOptions(data_dir, kafka, nodes, projectors, cluster, port, node_port, as_json)
    with friendly_errors(as_json):
        raise typer.Exit(start_detached(options) if detach else run(options))


def down(
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: Json = False,
) -> None:
    """Stop the local cluster that runs on a data folder."""
    from deploy.up import down as stop_cluster

    with friendly_errors(as_json):
        stop_cluster(data_dir, as_json)


def demo(
    keep: Annotated[
        bool, typer.Option("--keep", envvar="KEEP", help="leave the cluster running at the end")
    ] = False,
    flights: Annotated[int, typer.Option(min=1_000, help="how many of the 336,776 flights")] = 336_776,
) -> None:
    """Index the flights of 2013 while they depart and arrive, and prove every index equal to the source."""
    from deploy.demo import run

    with friendly_errors():
        raise typer.Exit(run(keep=keep, flights=flights))


def doctor(
    kafka: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Kafka to check")] = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: Json = False,
) -> None:
    """Check Java, Kafka, topics and the cluster, and say what to do."""
    from deploy.doctor import run

    with friendly_errors(as_json):
        raise typer.Exit(run(kafka, data_dir, as_json))


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (up, down, demo, doctor):
        app.command()(command)
