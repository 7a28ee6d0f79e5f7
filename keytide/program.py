"""What every process of Keytide does first."""

from __future__ import annotations

import faulthandler
import sys

from keytide.private_files import keep_private


def begin() -> None:
    """The first thing that a process does: from here on its files are for its user alone, and one that is
    ended by SIGSEGV, SIGABRT, SIGBUS, SIGFPE or SIGILL leaves the stacks of its threads in its log."""
    keep_private()
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
