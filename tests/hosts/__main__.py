"""Three hosts, as root. To try things on by hand: `make hosts`; lines on standard input strike links. Or with
clients and nemeses: `python -m tests.hosts --soak --minutes 10 --seed 1`, which ends with exit status 0 and a
summary when nothing was wrong, and with 1 and what was otherwise; the folder with the logs is kept then."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import cast

from deploy.cluster import LocalCluster
from tests.hosts.cluster import TOKEN, HostCluster, HostWorld
from tests.hosts.network import Network, available
from tests.hosts.soak import soak
from tests.hosts.workload import prepare

HELP = "cut|mute|deaf HOST, slow HOST RATE (as in 2mbit), heal, or an empty line for this; Ctrl-C ends"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hosts", description="Three hosts on this machine.")
    parser.add_argument("--soak", action="store_true", help="clients and nemeses, and what the checker says")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: 10)")
    parser.add_argument(
        "--seed", type=int, default=1, help="what is tried and when follows from it (default: 1)"
    )
    parser.add_argument("--kinds", help="these nemeses, in this order, in place of a schedule: cut,kill,...")
    arguments = parser.parse_args()
    if why := available():
        print(why, file=sys.stderr)
        return 1
    if arguments.soak:
        kinds = arguments.kinds.split(",") if arguments.kinds else None
        return _soak(60 * arguments.minutes, arguments.seed, kinds)
    _by_hand()
    return 0


def _soak(seconds: float, seed: int, kinds: list[str] | None) -> int:
    folder = Path(tempfile.mkdtemp(prefix="keytide-hosts-"))
    try:
        with (
            Network(3) as network,
            HostCluster(network, folder) as cluster,
            HostWorld(cast("LocalCluster", cluster)) as world,
        ):
            prepare(world)
            soak(world, network, cluster, seconds, seed, lambda line: print(line, flush=True), kinds)
    except AssertionError as error:
        print(f"seed {seed}: {error}\nlogs: {folder}/logs", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


def _by_hand() -> None:
    """Until Ctrl-C, or the end of input."""
    with (
        tempfile.TemporaryDirectory(prefix="keytide-hosts-") as folder,
        Network(3) as network,
        HostCluster(network, Path(folder)) as cluster,
        ExitStack() as struck,
    ):
        print(f"export KEYTIDE_URL={','.join(cluster.coordinator_urls)} KEYTIDE_TOKEN={TOKEN}")
        print(f"export KEYTIDE_NODES={','.join(cluster.node_urls)}   # Kafka: {cluster.bootstrap}")
        print(f"logs: {folder}/logs\n{HELP}")
        try:
            for line in sys.stdin:
                print(_obey(network, struck, line.split()), flush=True)
        except KeyboardInterrupt:
            print("ending")


def _obey(network: Network, struck: ExitStack, words: list[str]) -> str:
    match words:
        case ["heal"]:
            struck.close()
            return "all links are whole"
        case ["cut" | "mute" | "deaf" as what, "1" | "2" | "3" as host]:
            struck.enter_context(getattr(network, what)(int(host) - 1))
        case ["slow", "1" | "2" | "3" as host, rate]:
            struck.enter_context(network.slow(int(host) - 1, rate))
        case _:
            return HELP
    return f"{' '.join(words)}: until heal"


if __name__ == "__main__":
    sys.exit(main())
