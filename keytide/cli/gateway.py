"""`gateway`: a scan endpoint of its own. What runs it is imported only when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keytide.cli.output import friendly_errors


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
        from deploy.gateway import run

        raise typer.Exit(run(host=host, port=port, kafka=kafka, cluster=cluster, config=config))
