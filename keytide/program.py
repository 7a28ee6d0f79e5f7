"""Programs that take their settings from elsewhere, and no arguments."""

from __future__ import annotations

import argparse


def no_arguments(module: str, description: str | None) -> None:
    """Say with `--help` what `python -m <module>` is, and refuse anything else (exit status 2)."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()
