"""`up`, `down`, `demo`, `doctor`, `trace`, `gateway`: the commands that need this machine's own parts, or
several packages. `keytide.cli` finds them by entry points (`keytide.commands` in pyproject.toml). What one of
them needs is imported only when it is called: help is asked for more often."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from keytide.cli.options import DATA_DIR_VARIABLE, DEFAULT_DATA_DIR, DataDir, JsonOption, Url
from keytide.cli.output import friendly_errors
from keytide.errors import CallerError


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
    brokers: Annotated[
        int | None,
        typer.Option(min=1, max=9, help="brokers of the embedded Kafka", show_default="as before, else 1"),
    ] = None,
    coordinators: Annotated[
        int | None,
        typer.Option(
            min=1, max=9, help="coordinators; one leads, others stand by", show_default="as before, else 1"
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=3,
            help="copies of each slice beside the first, of indexes that do not say",
            show_default="as before, else 0",
        ),
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
    as_json: JsonOption = False,
) -> None:
    """Start a local cluster and keep it running until Ctrl-C (or `keytide down`). A data folder remembers its
    cluster: sizes, ports and Kafka are those of its last start unless they are given."""
    from deploy.up import UpOptions, run
    from deploy.up import detach as start_detached

    options = UpOptions(
        data_dir,
        kafka,
        nodes,
        projectors,
        cluster,
        port,
        node_port,
        as_json,
        replicas,
        brokers,
        coordinators,
    )
    with friendly_errors(as_json):
        raise typer.Exit(start_detached(options) if detach else run(options))


def down(
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: JsonOption = False,
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
    as_json: JsonOption = False,
) -> None:
    """Check Java, Kafka, topics and the cluster, and say what to do."""
    from deploy.doctor import run

    with friendly_errors(as_json):
        raise typer.Exit(run(kafka, data_dir, as_json))


def trace(
    keyspace: Annotated[str, typer.Argument(help="keyspace, or an index: then of that one alone")],
    id_: Annotated[str, typer.Argument(metavar="ID", help="document id: the record's key")],
    index: Annotated[str, typer.Option(help="only this index of the keyspace", show_default="all")] = "",
    partition: Annotated[
        int | None, typer.Option(min=0, help="only this source partition", show_default="all")
    ] = None,
    last: Annotated[
        int, typer.Option(min=1, help="how many offsets of each partition are looked at, from its end")
    ] = 1_000_000,
    kafka: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Kafka", show_default="that of the data folder, else kafka.bootstrap"
        ),
    ] = "",
    cluster: Annotated[
        str, typer.Option(help="cluster name: prefix of its topics", show_default="likewise")
    ] = "",
    url: Url = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: JsonOption = False,
) -> None:
    """Show when the newest record of a document passed each hop, from its topic to a published snapshot, and
    what it waits for. It only reads Kafka, and asks a node for the entries."""
    from deploy.trace import TraceOptions, run

    with friendly_errors(as_json):
        run(
            TraceOptions(keyspace, id_, index, partition, last, kafka, cluster, url, data_dir, as_json),
        )


def gateway(
    port: Annotated[
        int | None, typer.Option(help="scan endpoint; 0 picks a free port [default: gateway.port, 8092]")
    ] = None,
    host: Annotated[str | None, typer.Option(help="address to listen on [default: gateway.host]")] = None,
    kafka: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Kafka [default: kafka.bootstrap]")
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="cluster name: prefix of its topics")] = None,
    config: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="settings [default: keytide.toml]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print errors as JSON")] = False,
) -> None:
    """Serve scans without holding any data, until Ctrl-C."""
    with friendly_errors(as_json):
        from indexer.serve.gateway import Gateway
        from indexer.serve.process import exit_status
        from keytide.process.program import begin, log_to_stderr
        from keytide.settings.settings import load_settings

        begin()
        log_to_stderr()
        if config is not None:
            os.environ["KEYTIDE_CONFIG"] = str(config)
        own: dict[str, Any] = {"host": host, "port": port}
        given = {name: value for name, value in own.items() if value is not None}
        process = Gateway(
            load_settings(
                gateway=given or None, kafka={"bootstrap": kafka} if kafka else None, cluster=cluster
            )
        )
        try:
            process.run()
        except CallerError:
            raise
        except Exception as error:  # the end of the process: told, never swallowed
            raise typer.Exit(exit_status(error)) from error
