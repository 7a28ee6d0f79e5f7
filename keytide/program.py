"""Programs that take their settings from elsewhere, and no arguments."""

from __future__ import annotations

import argparse

from keytide.private_files import keep_private


def no_arguments(module: str, description: str | None) -> None:
    """The first thing that `python -m <module>` does: say with `--help` what it is, and refuse anything else
    (exit status 2). From here on its files are for its user alone."""
    keep_private()
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()
