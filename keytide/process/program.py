"""What every process of Keytide does first."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import os
import sys


def begin() -> None:
    """The first thing that a process does: from here on its files are for its user alone, and one that is
    ended by SIGSEGV, SIGABRT, SIGBUS, SIGFPE or SIGILL leaves the stacks of its threads in its log."""
    os.umask(0o077)
    faulthandler.enable(sys.__stderr__ or 2)


def no_arguments(module: str, description: str | None) -> None:
    """`begin`, of a program that takes its settings from elsewhere: `python -m <module>` says with `--help`
    what it is, and refuses anything else (exit status 2)."""
    import argparse  # (the fold worker, which stays small, begins here too)

    begin()
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()


def log_to_stderr(level: str | int = logging.INFO) -> None:
    """The log of a service or driver. Libraries that tell of every request are heard from warnings on: a copy
    asks many times a second."""
    logging.basicConfig(
        stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for noisy in ("py4j", "httpx", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def say_ready(url: str) -> None:
    """One line on stdout, `ready <url>`, in one write: it often shares its file with a log of other threads,
    and `print` writes text and end of line apart where Python does not buffer.

    Nothing is raised: a full disk, or nobody who reads, is no reason not to serve.
    """
    if sys.stdout is None:  # it was closed before the process began
        return
    with contextlib.suppress(OSError):
        sys.stdout.write(f"ready {url}\n")
        sys.stdout.flush()


def spare_collections(young: int = 2_000) -> None:
    """Keep what is loaded by now out of the reach of Python's collector of cycles, and have it look less
    often. Objects go by their counts all the same; but a full collection of what a node has loaded held
    every thread for 100 ms, and one beside large queries for 50 (measured), whoever waited for an answer.

    Args:
        young: new objects before it looks at those alone; with five times as many it looks at those of
            middle age, which takes a millisecond or two, and with 12,500 times as many at all.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(young, 5, 2_500)
