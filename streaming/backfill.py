"""`python -m streaming.backfill --build ID`: backfill the indexes of one build, then end.

Exit status: 0 the backfill has passed load and low-watermark timestamps; 1 something was away, start it
again (it goes on from its checkpoint); 3 this build can never work, the reason is in the last report and on
stderr; 143 stopped on request. Settings come from KEYTIDE_* and keytide.toml (`keytide.settings`);
KEYTIDE_SPARK_JARS names the jars of Spark's Kafka connector (`streaming.spark`).
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading

from keytide.settings import load_settings
from streaming.driver import Driver


def main(arguments: list[str] | None = None) -> int:
    """Run the driver until the build's backfill has passed, failed, or was stopped."""
    parser = argparse.ArgumentParser(prog="python -m streaming.backfill", description="Backfill one build.")
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
    return Driver(load_settings(), parsed.build, stop).run()


if __name__ == "__main__":
    sys.exit(main())
