"""What readers notice of a node or a leader that dies, stands still, is emptied or loses its disk (acceptance
21 to 23, 26 and 30).

One cluster goes through all of it: three nodes with two copies of each slice, two coordinators, nothing that
starts parts again but the benchmark. Documents are updated at 1,000 a second, and two connections ask for
rows, 10 times a second each, through the nodes that nothing happens to. Of each fault there are
`scans_refused`, `slowest_ms` and `p99_ms`, beside those of a quiet stretch right before it (`quiet_`): of
whole scans, from when each was sent. `latest_ms` is the slowest from when it was due: where the machine does
not do 20 scans a second beside the rest, those that wait for others are late. A part comes back within the
stretch that is measured, and all copies serve again at its end.

`asked_behind` is how many slices of a node that was back were asked for before they had caught up.
`next_number_s` is the longest time without a new published number in the 15 s after the fault. Seconds of a
leader that is gone are from the fault to the first word of a later term, and to the first number that is
newer than any before.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from benchmarks.asking import (
    COPIED,
    Copied,
    is_ready,
    live,
    metric,
    placement,
    until,
    url_of,
    wait,
    wait_job,
    whole,
)
from benchmarks.documents import PARTITIONS, load
from benchmarks.harness import Bench, Result, machine_state, percentiles, say
from benchmarks.hearing import Stamps
from benchmarks.latency import writing
from benchmarks.readers import Scans
from benchmarks.throughput import BY_CITY, TOPIC
from keytide.cli import rolling
from keytide.errors import invariant

DOCUMENTS: Final = 300_000
SLICES: Final = 3
UPDATES_PER_S: Final = 1_000
SCANS_PER_S: Final = 10
ROWS: Final = 100
QUIET_S: Final = 20.0
FOLLOWED_S: Final = 15.0
"""For so long after a fault numbers are followed."""
STILL_S: Final = 60.0
LEADER_STILL_S: Final = 30.0
AWAY_S: Final = 30.0
DRAINING_S: Final = 5.0
GRACE_S: Final = 60
LIMIT_BYTES_PER_S: Final = 500_000
VICTIM: Final = "node-3"
BEHIND: Final = "keytide_scan_slices_behind_total"
SETTINGS: Final = {
    "KEYTIDE_INDEXER__COPY_RATE": str(LIMIT_BYTES_PER_S),
    "KEYTIDE_BUILD__VERIFY": "false",
}


def outage(documents: int = DOCUMENTS) -> Result:
    """A node is killed, stands still, comes back, loses its disk; the leader is killed, and stands still; a
    drain cannot go on; nodes are restarted one after the other."""
    result = Result("outage", machine=machine_state())
    result.sizes = {
        "documents": documents,
        "slices": SLICES,
        "replicas": 1,
        "nodes": 3,
        "coordinators": 2,
        "updates_per_s": UPDATES_PER_S,
        "scans_per_s": 2 * SCANS_PER_S,
        "limit_mb_per_s": LIMIT_BYTES_PER_S / 1e6,
        "grace_s": GRACE_S,
    }
    with Bench(nodes=3, settings=SETTINGS, supervise=False, coordinators=2) as bench:
        bench.make_topic(TOPIC, PARTITIONS)
        load(bench.bootstrap, TOPIC, range(documents))
        bench.create_index(BY_CITY.replace("slices=8", f"slices={SLICES}, replicas=1"))
        with Stamps(bench.bootstrap) as stamps, writing(bench, UPDATES_PER_S, of=documents):
            faults = Faults(bench, stamps, result)
            faults.node_killed()
            faults.node_stopped()
            faults.shorten_grace()  # for the coordinators that are started from here on
            faults.leader_killed()
            faults.leader_stopped()
            faults.node_away()
            with faults.disk_lost():
                faults.drain_without_room()
            faults.rolling_restart()
            faults.compare_copies()
    return result


class Faults:
    """What is done to the cluster, and what is noticed of it."""

    def __init__(self, bench: Bench, stamps: Stamps, result: Result) -> None:
        self._bench = bench
        self._stamps = stamps
        self._figures = result.figures

    def node_killed(self) -> None:
        """Acceptance 21."""
        with self._noticed("node_killed", VICTIM):
            began = time.monotonic()
            self._bench.cluster.kill(VICTIM)
            self._follow("node_killed", began)
            self._bench.cluster.restart(VICTIM)
            self._settle()
            self._keep("node_killed_asked_behind", metric(url_of(self._bench)[VICTIM], BEHIND))

    def node_stopped(self) -> None:
        """Acceptance 22: the node stands still for a minute, then goes on as it was."""
        url = url_of(self._bench)[VICTIM]
        with self._noticed("node_stopped", VICTIM):
            began = time.monotonic()
            with self._standing_still(VICTIM):
                self._follow("node_stopped", began)
                time.sleep(max(0.0, began + STILL_S - time.monotonic()))
            back = time.monotonic()
            before = metric(url, BEHIND)  # what it was asked while it stood still lay in its sockets
            wait(lambda: VICTIM in live(self._bench) and whole(self._bench), "it has caught up")
            self._keep("node_stopped_caught_up_s", time.monotonic() - back)
            self._settle()
            self._keep("node_stopped_asked_behind", metric(url, BEHIND) - before)

    def shorten_grace(self) -> None:
        """Have coordinators that are started from now on fill the copies of a silent node elsewhere after
        the grace: a node that stands still for a minute is to keep them."""
        for name in self._bench.cluster.coordinators:
            environment = self._bench.cluster.services[name].env
            if environment is not None:
                environment["KEYTIDE_COORDINATOR__COPY_AFTER_S"] = str(GRACE_S)

    def leader_killed(self) -> None:
        """Acceptance 23: the one that stands by leads; who was killed comes back and stands by."""
        leader = self._leader()
        with self._noticed("leader_killed"):
            before, began = self._stamps.newest, time.monotonic()
            self._bench.cluster.kill(leader)
            self._keep("leader_killed_term_s", self._stamps.wait_term(before.term) - began)
            self._keep("leader_killed_number_s", self._stamps.wait_number(before) - began)
            self._bench.cluster.restart(leader)
            self._settle()

    def leader_stopped(self) -> None:
        """Acceptance 23: stopped for half a minute; when it goes on it finds that another one leads, and
        ends."""
        leader = self._leader()
        child = self._bench.cluster.services[leader]
        with self._noticed("leader_stopped"):
            before, began = self._stamps.newest, time.monotonic()
            with self._standing_still(leader):
                self._keep("leader_stopped_term_s", self._stamps.wait_term(before.term) - began)
                self._keep("leader_stopped_number_s", self._stamps.wait_number(before) - began)
                time.sleep(max(0.0, began + LEADER_STILL_S - time.monotonic()))
            wait(lambda: not child.running, "the leader that was replaced ends")
            self._bench.cluster.restart(leader)
            self._settle()

    def node_away(self) -> None:
        """A node that comes back before the grace has ended keeps what it has."""
        before = placement(self._bench)
        with self._noticed("node_away", VICTIM), Copied(self._bench, self._urls(VICTIM)) as copied:
            began = time.monotonic()
            self._bench.cluster.kill(VICTIM)
            time.sleep(max(0.0, began + AWAY_S - time.monotonic()))
            self._bench.cluster.restart(VICTIM)
            self._settle()
        own = metric(url_of(self._bench)[VICTIM], COPIED)  # (since its start)
        self._keep("node_away_copied_bytes", copied.bytes + own)
        moved = sum(a != b for a, b in zip(before, placement(self._bench), strict=True))
        self._keep("node_away_slices_moved", moved)

    @contextmanager
    def disk_lost(self) -> Iterator[None]:
        """A node and its disk are gone. The block has no third node; then it comes back, with
        nothing, and gets its part."""
        if not any(VICTIM in nodes for nodes in placement(self._bench)):
            # With all cores busy it may have been back after the grace: then there would be nothing to lose.
            self._rebalance()
        with self._noticed("disk_lost", VICTIM), Copied(self._bench, self._urls(VICTIM)) as copied:
            began = time.monotonic()
            self._bench.cluster.kill(VICTIM)
            shutil.rmtree(self._bench.cluster.data_dir / VICTIM)
            wait(self._two_of_each, "copies are filled in place of those that are lost")
            counted = time.monotonic()
        most = max(copied.by_node)  # (each node has a limit of its own)
        self._keep("disk_lost_copying_after_s", copied.began - began)
        self._keep("disk_lost_copied_mb", copied.bytes / 1e6)
        self._keep("disk_lost_rows_there_s", copied.seconds)
        self._keep("disk_lost_seconds", counted - copied.began)
        self._keep("disk_lost_of_limit", (counted - copied.began) * LIMIT_BYTES_PER_S / most)
        yield
        self._bench.cluster.restart(VICTIM)
        wait(lambda: VICTIM in live(self._bench), "it is heard")
        self._rebalance()

    def drain_without_room(self) -> None:
        """Acceptance 26: a node is drained whose copies nobody can take; then not any more."""
        node = next(name for name in url_of(self._bench) if name != VICTIM)
        with self._noticed("drain", node):
            began = time.monotonic()
            job = self._bench.admin.call("POST", f"/v1/nodes/{node}/drain")["id"]
            self._keep("drain_names_after_s", until(lambda: bool(self._job(job)["waiting_for"]), began))
            words = self._job(job)["waiting_for"]
            say(f"the drain waits for {words}")
            invariant("another indexer node" in words, "BenchmarkDrain", words)
            time.sleep(DRAINING_S)
            began = time.monotonic()
            self._bench.admin.call("POST", f"/v1/nodes/{node}/undrain")
            over = until(lambda: self._job(job)["state"] == "CANCELLED" and self._two_of_each(), began)
            self._keep("drain_cancelled_after_s", over)

    def rolling_restart(self) -> None:
        """Acceptance 30: by `keytide node restart`, killed in place of asked to end."""

        def stop(node: dict[str, Any]) -> None:
            self._bench.cluster.kill(node["id"])
            self._bench.cluster.restart(node["id"])

        noticed: list[Scans] = []
        began = time.monotonic()
        for node in url_of(self._bench):
            with self._readers(node) as readers:
                noticed += readers
                with _part(readers, "quiet"):
                    time.sleep(QUIET_S)
                with _part(readers, "during"):
                    rolling.restart(self._bench.admin, [node], stop, force=False, limit_s=120, quiet=True)
        self._keep("rolling_restart_s", time.monotonic() - began - 3 * QUIET_S)
        self._note("rolling_restart", noticed)

    def compare_copies(self) -> None:
        """Acceptance 30: all copies are the same at one number, and what the source says."""
        id_ = self._bench.admin.call("POST", "/v1/indexes/by_city/verify")["id"]
        verified = wait_job(self._bench, id_)
        self._keep("differences", sum(verified["counts"].values()))
        self._keep("verified_s", verified["seconds"])

    # --- what is noticed --------------------------------------------------------------------------------

    @contextmanager
    def _noticed(self, name: str, victim: str = "") -> Iterator[None]:
        """Readers through nodes that nothing happens to: a quiet stretch, then the block."""
        say(f"-- {name}")
        with self._readers(victim) as readers:
            with _part(readers, "quiet"):
                time.sleep(QUIET_S)
            with _part(readers, "during"):
                yield
        self._note(name, readers)

    @contextmanager
    def _readers(self, victim: str) -> Iterator[list[Scans]]:
        with ExitStack() as stack:
            yield [stack.enter_context(Scans(url, ROWS, SCANS_PER_S)) for url in self._urls(victim)[:2]]

    def _urls(self, victim: str) -> list[str]:
        """Of the nodes beside one that answer."""
        return [url for node, url in url_of(self._bench).items() if node != victim and is_ready(url)]

    def _note(self, name: str, readers: Sequence[Scans]) -> None:
        for part, prefix in (("quiet", f"{name}_quiet"), ("during", name)):
            samples = [sample for one in readers for sample in one.sent_ms[part]]
            self._keep(f"{prefix}_p99_ms", percentiles(samples)["p99_ms"])
            self._keep(f"{prefix}_slowest_ms", max(samples))
            self._keep(f"{prefix}_latest_ms", max(sample for one in readers for sample in one.ms[part]))
        self._keep(f"{name}_scans", sum(len(one.ms["during"]) for one in readers))
        self._keep(f"{name}_scans_refused", sum(sum(one.refused.values()) for one in readers))

    def _follow(self, name: str, began: float) -> None:
        """Numbers after a fault."""
        time.sleep(max(0.0, began + FOLLOWED_S - time.monotonic()))
        self._keep(f"{name}_next_number_s", self._stamps.longest(began, began + FOLLOWED_S))

    def _keep(self, name: str, figure: float) -> None:
        self._figures[name] = round(figure, 2)
        say(f"{name}: {figure:,.2f}")

    # --- what is asked, and done ----------------------------------------------------------------------------

    def _settle(self) -> None:
        """All copies serve, and for a moment nothing happens."""
        wait(lambda: whole(self._bench), "all copies serve")
        time.sleep(2)

    def _rebalance(self) -> None:
        """Have every node get its part."""
        wait_job(self._bench, self._bench.admin.call("POST", "/v1/rebalance")["id"])
        self._settle()

    def _two_of_each(self) -> bool:
        """Whether every slice has two copies that count, none on the node that is gone."""
        return all(len(nodes) == 2 and VICTIM not in nodes for nodes in placement(self._bench))

    def _job(self, id_: str) -> dict[str, Any]:
        found: dict[str, Any] = self._bench.admin.call("GET", f"/v1/jobs/{id_}")
        return found

    def _leader(self) -> str:
        """The coordinator that leads."""
        cluster = self._bench.cluster
        urls = zip(cluster.coordinators, cluster.coordinator_urls, strict=True)
        return next(name for name, url in urls if is_ready(url))

    @contextmanager
    def _standing_still(self, name: str) -> Iterator[None]:
        pid = self._bench.cluster.services[name].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def _part(readers: Sequence[Scans], name: str) -> Iterator[None]:
    """Keep what all of them measure in the block under a name."""
    with ExitStack() as stack:
        for one in readers:
            stack.enter_context(one.part(name))
        yield
