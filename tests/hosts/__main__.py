"""Three hosts to try things on by hand: `make hosts` (as root). Lines on standard input strike links."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.hosts.cluster import TOKEN, HostCluster
from tests.hosts.network import Network, available

HELP = "cut|mute|deaf HOST, slow HOST RATE (as in 2mbit), heal, or an empty line for this; Ctrl-C ends"


def main() -> int:
    """Until Ctrl-C, or the end of input."""
    if why := available():
        print(why, file=sys.stderr)
        return 1
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
    return 0


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
