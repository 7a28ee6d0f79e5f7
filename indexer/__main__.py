"""`python -m indexer`: an indexer node. Settings come from keytide.toml and KEYTIDE_* variables."""

from __future__ import annotations

import sys

from keytide.process.program import log_to_stderr, no_arguments


def main() -> int:
    """Run until SIGTERM or SIGINT; the exit status."""
    from indexer.serve.process import exit_status  # (loading a node takes a second, and --help needs none)
    from indexer.serve.service import NodeService
    from keytide.settings.settings import load_settings

    log_to_stderr()
    try:
        NodeService(load_settings()).run()
    except Exception as error:  # noqa: BLE001 - the end of the process: told, never swallowed
        return exit_status(error)
    return 0


if __name__ == "__main__":
    no_arguments("indexer", __doc__)
    sys.exit(main())
