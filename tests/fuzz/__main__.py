"""`python -m tests.fuzz internal --minutes 60`: fuzz until something is found, or until the time is over."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.http import HttpFuzz
from tests.fuzz.internal import InternalFuzz
from tests.live_node import LiveNode

ROUND = 500
_FUZZERS: dict[str, type[InternalFuzz] | type[HttpFuzz]] = {"internal": InternalFuzz, "http": HttpFuzz}


def main() -> int:
    """Print how many messages there were; an assertion names the seed that failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("what", choices=sorted(_FUZZERS))
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args()
    until, seed = time.monotonic() + flags.minutes * 60, flags.seed
    asked: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        node = LiveNode(Path(folder))
        try:
            while time.monotonic() < until:
                with _FUZZERS[flags.what](node, seed) as fuzz:
                    fuzz.run(ROUND)
                for what, count in fuzz.answers.items():
                    asked[what] = asked.get(what, 0) + count
                seed += 1
        finally:
            node.close()
    print(f"{sum(asked.values())} messages, seeds {flags.seed} to {seed - 1}: {dict(sorted(asked.items()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
