"""What befalls hosts, one thing at a time, by a schedule that follows from a seed.

A nemesis says whose nodes may refuse scans meanwhile (`hosts`), and whether the cluster can bear it, so that
no other node may (`bears`): it can while a copy of each slice and a majority of brokers are left, and none of
the hosts of the readers is cut off.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

import psutil

from tests.chaos.processes import family, stopped
from tests.hosts.cluster import HostCluster
from tests.hosts.network import Network
from tests.hosts.relay import Impairment
from tests.integration.disks import MIB

PARTS: Final = ("node", "coordinator", "projector")
SKEW_S: Final = 900.0
"""As in the simulation; a node takes the credential of a clock that is an hour off."""


@dataclass(frozen=True, slots=True)
class Nemesis:
    """Something that can be done to hosts, and is undone when its block ends.

    Attributes:
        what: in words.
        hosts, bears: as of `checker.Strike`.
        strike: does it.
    """

    what: str
    hosts: frozenset[int]
    bears: bool
    strike: Callable[[], AbstractContextManager[object]]


class Nemeses:
    """All that can be done.

    Args:
        network, cluster: to whom.
        chance: where, and how much.
    """

    def __init__(self, network: Network, cluster: HostCluster, chance: random.Random) -> None:
        self._network, self._cluster, self._chance = network, cluster, chance
        self._kinds: dict[str, Callable[[int], Nemesis]] = {
            "cut": lambda host: self._link("cut", host, lambda: network.cut(host)),
            "mute": lambda host: self._link("mute", host, lambda: network.mute(host)),
            "deaf": lambda host: self._link("deaf", host, lambda: network.deaf(host)),
            "slow": lambda host: self._link("slow", host, lambda: network.slow(host, "2mbit")),
            "delay": lambda host: self._impaired(
                "delay", host, Impairment(delay_s=chance.uniform(0.05, 0.3))
            ),
            "loss": lambda host: self._impaired("loss", host, Impairment(loss=chance.uniform(0.02, 0.2))),
            "disk": self._disk,
            "clock": self._clock,
            "kill": self._kill,
            "stop": self._stop,
            "broker": self._broker,
            "host": self._host,
            "two-brokers": self._two_brokers,
            "apart": self._apart,
        }

    @property
    def kinds(self) -> list[str]:
        return list(self._kinds)

    def schedule(self) -> Iterator[Nemesis]:
        """Without end: each kind once, in some order, and again in another one."""
        while True:
            for kind in self._chance.sample(self.kinds, len(self._kinds)):
                yield self.one(kind)

    def one(self, kind: str, host: int | None = None) -> Nemesis:
        """One of a kind, to some host."""
        return self._kinds[kind](self._chance.choice(self._cluster.hosts) if host is None else host)

    # --- links --------------------------------------------------------------------------------------------

    def _link(self, what: str, host: int, strike: Callable[[], AbstractContextManager[object]]) -> Nemesis:
        return Nemesis(f"{what} of host {host + 1}", frozenset({host}), True, strike)

    def _impaired(self, kind: str, host: int, by: Impairment) -> Nemesis:
        ways = self._chance.choice(("both ways", "of what it sends", "of what it hears"))
        sent = Impairment() if ways == "of what it hears" else by
        heard = Impairment() if ways == "of what it sends" else by
        what = f"{kind} ({by.delay_s:.2f} s, {by.loss:.0%}) {ways}"
        return self._link(what, host, lambda: self._network.impaired(host, sent, heard))

    def _apart(self, host: int) -> Nemesis:
        """Each host alone."""
        others = [other for other in self._cluster.hosts if other != host]

        @contextmanager
        def strike() -> Iterator[None]:
            with ExitStack() as struck:
                for other in others:
                    struck.enter_context(self._network.cut(other))
                yield

        return Nemesis(f"all but host {host + 1} cut", frozenset(), False, strike)

    # --- disks and clocks ---------------------------------------------------------------------------------

    def _disk(self, host: int) -> Nemesis:
        """A node leaves a reserve, and goes on to answer; where nothing is left, its broker ends, too."""
        left = self._chance.choice((20 * MIB, 0))
        hosts = frozenset({host}) if left == 0 else frozenset[int]()
        what = f"full disk of host {host + 1} ({left // MIB} MiB left)"
        return Nemesis(what, hosts, True, lambda: self._cluster.disks[host].full(left))

    def _clock(self, host: int) -> Nemesis:
        seconds = self._chance.choice((-1, 1)) * self._chance.uniform(1, SKEW_S)

        @contextmanager
        def strike() -> Iterator[None]:
            self._cluster.set_clock(host, seconds)
            try:
                yield
            finally:
                self._cluster.set_clock(host, 0.0)

        return Nemesis(f"clock of host {host + 1} off by {seconds:.0f} s", frozenset(), True, strike)

    # --- processes ----------------------------------------------------------------------------------------

    def _part(self, host: int) -> tuple[str, frozenset[int]]:
        """A part of a host, and whose scans that may cost."""
        part = self._chance.choice(PARTS)
        return f"{part}-{host + 1}", frozenset({host}) if part == "node" else frozenset()

    def _kill(self, host: int) -> Nemesis:
        name, hosts = self._part(host)
        return Nemesis(f"kill -9 of {name}", hosts, True, lambda: self._cluster.down(name))

    def _stop(self, host: int) -> Nemesis:
        name, hosts = self._part(host)
        return Nemesis(
            f"SIGSTOP of {name}",
            hosts,
            True,
            lambda: stopped(family(psutil.Process(self._cluster.services[name].pid))),
        )

    def _broker(self, host: int) -> Nemesis:
        name = f"kafka-{host + 1}"
        return Nemesis(f"kill -9 of {name}", frozenset(), True, lambda: self._cluster.down(name))

    def _host(self, host: int) -> Nemesis:
        names = [name for name in self._cluster.services if name.endswith(f"-{host + 1}")]
        return Nemesis(
            f"kill -9 of all of host {host + 1}", frozenset({host}), True, lambda: self._cluster.down(*names)
        )

    def _two_brokers(self, host: int) -> Nemesis:
        names = [f"kafka-{other + 1}" for other in self._cluster.hosts if other != host]
        return Nemesis(
            f"kill -9 of {' and '.join(names)}", frozenset(), False, lambda: self._cluster.down(*names)
        )
