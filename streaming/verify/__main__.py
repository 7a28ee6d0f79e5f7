"""`python -m streaming.verify --job ID`: compare the indexes of one job with their source, then end.

Exit status: 0 the report is written; 1 something was away, start it again (it begins again); 3 this job can
never work, the reason is in the last report and on stderr; 143 stopped on request. Settings come from
KEYTIDE_* and keytide.toml; KEYTIDE_TOKEN is an API token that may read.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading

from keytide.settings import load_settings
from streaming.verify.driver import VerifyDriver


def main(arguments: list[str] | None = None) -> int:
    """Run the driver until the job is done, has failed, or was stopped."""
    return run_job("streaming.verify", "Verify indexes.", VerifyDriver, arguments)


def run_job(name: str, description: str, driver: type[VerifyDriver], arguments: list[str] | None) -> int:
    """Run the driver of a job, as `python -m <name> --job ID`; returns the exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
    parser.add_argument("--job", required=True, help="id of the job")
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
    os.nice(settings.build.nice)  # as builds do: Spark's processes are children of this one
    return driver(settings, parsed.job, stop).run()


if __name__ == "__main__":
    sys.exit(main())
