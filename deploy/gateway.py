"""`keytide gateway`: runs a stand-alone scan endpoint in the foreground."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from indexer.serve.gateway import Gateway
from indexer.serve.process import exit_status
from keytide.errors import CallerError
from keytide.process.program import begin
from keytide.settings.settings import Settings, load_settings


def run(
    *, host: str | None, port: int | None, kafka: str | None, cluster: str | None, config: Path | None
) -> int:
    """Serve until SIGINT or SIGTERM; the exit status, 0 after a clean stop.

    Args:
        host, port, kafka, cluster: in place of the settings'.
        config: file of settings in place of keytide.toml.

    Raises:
        ConfigurationError: the settings cannot work.
    """
    begin()
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    gateway = Gateway(_settings(host, port, kafka, cluster, config))
    try:
        gateway.run()
    except CallerError:
        raise
    except Exception as error:  # noqa: BLE001 - the end of the process: told, never swallowed
        return exit_status(error)
    return 0


def _settings(
    host: str | None, port: int | None, kafka: str | None, cluster: str | None, config: Path | None
) -> Settings:
    if config is not None:
        os.environ["KEYTIDE_CONFIG"] = str(config)
    own: dict[str, Any] = {"host": host, "port": port}
    given = {name: value for name, value in own.items() if value is not None}
    return load_settings(
        gateway=given or None, kafka={"bootstrap": kafka} if kafka else None, cluster=cluster
    )
