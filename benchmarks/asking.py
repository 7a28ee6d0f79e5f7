"""What benchmarks ask of a cluster while something happens to it: who lives, where slices are, what is
copied."""

from __future__ import annotations

import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from benchmarks.harness import Bench, progress_line
from benchmarks.patience import limit
from keytide.errors import invariant
from keytide.process.worker import Worker

LIMIT_S: Final = 600.0
SOON_S: Final = 180.0
COPIED: Final = "keytide_node_copied_bytes_total"


def url_of(bench: Bench) -> dict[str, str]:
    """Where each node answers, by name."""
    names = sorted(name for name in bench.cluster.ports if name.startswith("node-"))
    return dict(zip(names, bench.cluster.node_urls, strict=True))


def live(bench: Bench) -> list[str]:
    """The nodes that are heard."""
    return [node["id"] for node in bench.admin.call("GET", "/v1/nodes") if node["live"]]


def indexed(bench: Bench) -> int:
    """Offsets of the source that stable scans include, of all partitions together."""
    shown = bench.admin.call("GET", "/v1/indexes/by_city")["timestamp"]
    return sum(place["offset"] for place in shown.values())


def placement(bench: Bench) -> list[list[str]]:
    """The nodes of each slice whose copies count."""
    found: list[list[str]] = bench.admin.call("GET", "/v1/indexes/by_city")["placement"]
    return found


def entries_by_node(bench: Bench, documents: int) -> dict[str, int]:
    """Entries of all copies of the index that count, once nothing is written to it any more.

    What slices have comes with heartbeats, each at its time, so it is waited for until it is all.

    Args:
        documents: how many entries the index has.
    """
    shown: dict[str, Any] = {}

    def heard() -> bool:
        shown.update(bench.admin.call("GET", "/v1/indexes/by_city"))
        return all_heard(shown["entries_by_slice"], documents)

    wait(heard, f"nodes tell of {documents} entries")
    return shared_out(shown["placement"], shown["entries_by_slice"], documents)


def all_heard(entries: Sequence[int | None], documents: int) -> bool:
    """Whether the newest heartbeats tell of all entries."""
    return None not in entries and sum(one or 0 for one in entries) == documents


def shared_out(
    placement: Sequence[Sequence[str]], entries: Sequence[int | None], documents: int
) -> dict[str, int]:
    """Entries of each node that has any copy; fails where slices do not have all entries, and no others.

    Args:
        placement: the nodes of each slice.
        entries: of each slice.
        documents: how many they are together.
    """
    invariant(all_heard(entries, documents), "BenchmarkEntries", f"{entries} are not the {documents} entries")
    found: dict[str, int] = defaultdict(int)
    for nodes, held in zip(placement, entries, strict=True):
        for node in nodes:
            found[node] += held or 0
    return dict(found)


def whole(bench: Bench) -> bool:
    """Whether all copies that there are to be count and serve, none leaves, and none lags."""
    copies = bench.admin.call("GET", "/v1/indexes/by_city")["copies"]
    keyspaces = bench.admin.call("GET", "/v1/stability")["keyspaces"].values()
    there = copies["wanted"] == copies["counted"] == copies["serving"]
    idle = not copies["filling"] and not copies["leaving"]
    return there and idle and not any(one["lagging"] for one in keyspaces)


def wait_job(bench: Bench, id_: str) -> dict[str, Any]:
    """A job that is DONE."""
    shown: dict[str, Any] = {}

    def done() -> bool:
        shown.update(bench.admin.call("GET", f"/v1/jobs/{id_}"))
        progress_line(shown["detail"])
        return bool(shown["state"] == "DONE")

    wait(done, f"{id_} is done")
    return shown


def wait(done: Callable[[], bool], what: str) -> None:
    """Wait until something is so, which words say."""
    deadline = time.monotonic() + limit(LIMIT_S)
    while not done():
        invariant(time.monotonic() < deadline, "BenchmarkWait", f"{what}: not after {limit(LIMIT_S):.0f} s")
        time.sleep(0.1)


class Copied:
    """Bytes that copies were filled with, and when they came, while the block runs.

    Args:
        urls: of the nodes that are asked, none of which ends meanwhile; empty for all.
    """

    def __init__(self, bench: Bench, urls: Iterable[str] = ()) -> None:
        self._urls = tuple(urls) or tuple(bench.cluster.node_urls)
        self._worker = Worker("copied", None, self._run)
        self._before = self._sizes()
        self._seen: list[tuple[float, list[int]]] = [(time.monotonic(), [0] * len(self._urls))]

    @property
    def by_node(self) -> list[int]:
        """Those of each node."""
        return self._seen[-1][1]

    @property
    def bytes(self) -> int:
        """All of them."""
        return sum(self.by_node)

    @property
    def began(self) -> float:
        """The last moment without any, by the monotonic clock."""
        return max(at for at, sizes in self._seen if not any(sizes))

    @property
    def seconds(self) -> float:
        """From the last moment without to the first with all."""
        return min(at for at, sizes in self._seen if sizes == self.by_node) - self.began

    def _run(self) -> None:
        while not self._worker.stopping.wait(0.25):
            now = zip(self._before, self._sizes(), strict=True)
            self._seen.append((time.monotonic(), [size - before for before, size in now]))

    def _sizes(self) -> list[int]:
        return [metric(url, COPIED) for url in self._urls]

    def __enter__(self) -> Copied:
        self._worker.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.close(30)
        self._worker.check()


def metric(url: str, name: str) -> int:
    """A counter of a part without labels; 0 of one that it does not have."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return int(float(line.split()[1]))
    return 0


def until(condition: Callable[[], bool], began: float) -> float:
    """Seconds since `began` when the condition holds."""
    while not condition():
        soon = limit(SOON_S)
        invariant(time.monotonic() - began < soon, "BenchmarkLimit", f"not within {soon:.0f} s")
        time.sleep(0.005)
    return time.monotonic() - began


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False
