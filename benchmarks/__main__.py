"""`python -m benchmarks [NAME ...] [--json] [--documents N] [--verify] [--runs N]`: measure, print a table,
keep the figures in `benchmarks/results/`. With `--busy` and `--times N` a stress test (`benchmarks.stress`).
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import (
    building,
    bulk,
    catching_up,
    cost,
    foreground,
    growing,
    hash_indexes,
    hot_partition,
    latency,
    moving,
    noisy,
    outage,
    recovery,
    scale,
    scan_load,
    small_builds,
    spatial,
    stress,
    throughput,
)
from benchmarks.harness import Result, say
from benchmarks.peers import comparing

ALL: dict[str, Callable[..., Result]] = {
    "live": throughput.live,
    "churn": throughput.churn,
    "indexes": throughput.indexes,
    "cost": cost.cost,
    "backfill": building.backfill,
    "small-build": small_builds.small_build,
    "bulk": building.bulk,
    "relayout": building.relayout,
    "move": moving.move,
    "join": moving.join,
    "peers": comparing.peers,
    "foreground": foreground.foreground,
    "scan": latency.scan,
    "gather": latency.gather,
    "scan-load": scan_load.scan_load,
    "scan-under-load": latency.scan_under_load,
    "noisy-neighbour": noisy.noisy_neighbour,
    "freshness": latency.freshness,
    "arrow": bulk.arrow,
    "growth": growing.growth,
    "recovery": recovery.recovery,
    "outage": outage.outage,
    "catch-up": catching_up.catch_up,
    "scale": scale.scale,
    "hash": hash_indexes.hash_indexes,
    "hot-partition": hot_partition.hot_partition,
    "spatial": spatial.spatial,
}


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):  # however it is ended, all that it started is
        signal.signal(number, signal.default_int_handler)
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(ALL)}; all without a name")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object per benchmark")
    parser.add_argument("--documents", type=int, help="instead of the usual number (growth: millions)")
    parser.add_argument("--verify", action="store_true", help="backfill: READY only when verified, by sums")
    parser.add_argument(
        "--verify-full",
        action="store_const",
        const="full",
        dest="verify",
        help="backfill: the same by a second read",
    )
    parser.add_argument("--runs", type=int, help="peers: so many runs, instead of three")
    parser.add_argument("--busy", action="store_true", help="keep every core busy with something else")
    parser.add_argument("--times", type=int, default=1, help="so many rounds, as a stress test: see --logs")
    parser.add_argument(
        "--logs",
        type=Path,
        default=Path("stress-logs"),
        help="where the logs of failed rounds are kept [default: %(default)s]",
    )
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in ALL]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(ALL)}")
    said = {
        "documents": arguments.documents,
        "millions": arguments.documents,
        "verify": arguments.verify,
        "runs": arguments.runs,
    }
    asked = {name: value for name, value in said.items() if value}
    results: list[Result] = []
    failed: list[str] = []
    for name in arguments.names or list(ALL):
        say(f"== {name}")
        takes = inspect.signature(ALL[name]).parameters
        one = functools.partial(ALL[name], **{it: value for it, value in asked.items() if it in takes})
        with stress.busy(arguments.busy):
            if arguments.times == 1 and not arguments.busy:
                done = [one()]
                for line in done[0].behind_kept():
                    say(line)
                done[0].save()
            else:  # (figures of a machine that is busy are not kept)
                done, lost = stress.rounds(name, arguments.times, one, arguments.logs)
                failed += lost
        results += done
        for result in done:
            say(json.dumps(result.figures))
    if not arguments.json:
        _print(results)
    for result in results if arguments.json else []:
        print(json.dumps(result.as_json()))
    for line in failed:
        print(line, file=sys.stderr)
    return 1 if failed else 0


def _print(results: list[Result]) -> None:
    table = Table(title="Benchmarks")
    for column in ("benchmark", "figures", "load before", "processor shares"):
        table.add_column(column, overflow="fold")
    for result in results:
        figures = ", ".join(f"{name} {value:,}" for name, value in result.figures.items())
        shares = ", ".join(f"{name} {share:.0%}" for name, share in result.shares.items() if share >= 0.01)
        table.add_row(result.name, figures, str(result.machine.get("load_before")), shares)
    Console(width=160).print(table)


if __name__ == "__main__":
    sys.exit(main())
