"""`python -m streaming.backfill --build ID`: backfill the indexes of one build, then end.

Exit status: 0 the backfill has passed load and low-watermark timestamps; 1 something was away, start it
again (it goes on from its checkpoint); 3 this build can never work, the reason is in the last report and on
stderr; 4 what it has read is lost, or, 5, the checkpoint that says what it was: the build must begin again;
143 stopped on request. Settings come from KEYTIDE_* and keytide.toml (`keytide.settings`);
KEYTIDE_SPARK_JARS names the jars of Spark's Kafka connector (`streaming.spark`).
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from typing import Protocol

from keytide.settings import Settings, load_settings
from streaming.driver import Driver


class RunsToItsEnd(Protocol):
    """A driver, made of settings, the id of a build, and what is set to have it end."""

    def __init__(self, settings: Settings, build: str, stop: threading.Event) -> None: ...

    def run(self) -> int:
        """Returns the exit status."""


def main(arguments: list[str] | None = None) -> int:
    """Run the driver until the build's backfill has passed, failed, or was stopped."""
    return run_driver("streaming.backfill", "Backfill one build.", Driver, arguments)


def run_driver(name: str, description: str, driver: type[RunsToItsEnd], arguments: list[str] | None) -> int:
    """Run the driver of a build, as `python -m <name> --build ID`; returns the exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
    parser.add_argument("--build", required=True, help="id of the build")
    parsed = parser.parse_args(arguments)
    level = os.environ.get("KEYTIDE_LOG", "INFO")
    logging.basicConfig(
        stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    settings = load_settings()
    os.nice(settings.build.nice)  # Spark's processes are children of this one
    return driver(settings, parsed.build, stop).run()


if __name__ == "__main__":
    sys.exit(main())
