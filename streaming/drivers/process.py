"""The process of a driver: its arguments, log, signals and manners, for `python -m streaming.<what>`."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from typing import Literal, Protocol

from keytide.process.program import begin
from keytide.settings.settings import Settings, load_settings


class DriverProgram(Protocol):
    """A driver, made of settings, the id of what it works for, and what is set to have it end."""

    def __init__(self, settings: Settings, of: str, stop: threading.Event, /) -> None: ...

    def run(self) -> int:
        """Returns the exit status."""


def run_driver(
    name: str,
    description: str,
    driver: type[DriverProgram],
    of: Literal["build", "job"],
    arguments: list[str] | None,
    *,
    stand_back: bool = True,
) -> int:
    """Run a driver, as `python -m <name> --<of> ID`; returns the exit status.

    Args:
        stand_back: behind other processes, by `build.nice`; False: the driver does so itself, when it knows
            by how much.
    """
    begin()
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
    parser.add_argument(f"--{of}", dest="id", required=True, help=f"id of the {of}")
    parsed = parser.parse_args(arguments)
    level = os.environ.get("KEYTIDE_LOG", "INFO")
    logging.basicConfig(
        stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for noisy in ("py4j", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    settings = load_settings()
    if stand_back:
        os.nice(settings.build.nice)  # Spark's processes are children of this one
    return driver(settings, parsed.id, stop).run()
