"""Several hosts on one machine: network namespaces on a bridge, whose links can be cut, slowed, or made to
take time and lose frames; one way, too.

Linux lets whoever may administer the network do that (`available` says why not). The host of the tests is on
the bridge as well, and reaches all. What a link drops it drops by a token bucket that no packet fits into
(`tc-tbf`): kernels without `netem` have that, too. What takes time goes through a `Relay`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.hosts.relay import Impairment, Relay

NOTHING: Final = ("tbf", "rate", "8bit", "burst", "1", "limit", "1")
"""A token bucket that lets no packet through."""


def available() -> str:
    """Why this machine makes no network namespaces, in words; "" when it does."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "there is no `ip` or no `tc`: apt install iproute2"
    name = f"keytide-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"no network namespace can be made: {made.stderr.strip()} (run as root, with CAP_NET_ADMIN)"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return ""


class Network:
    """Hosts with addresses of their own.

    Args:
        hosts: how many.
    """

    def __init__(self, hosts: int) -> None:
        self._hosts = hosts
        self._tag = f"kt{os.getpid()}"
        pid = os.getpid()
        self._subnet = f"10.{200 + pid % 50}.{pid // 50 % 250}"

    def __enter__(self) -> Self:
        bridge = self._bridge
        try:
            _run("ip", "link", "add", bridge, "type", "bridge")
            _run("ip", "addr", "add", f"{self._subnet}.254/24", "dev", bridge)
            _run("ip", "link", "set", bridge, "up")
            for host in range(self._hosts):
                self._join(host)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take everything away."""
        for host in range(self._hosts):
            for command in (("netns", "del", self._namespace(host)), ("link", "del", self._link(host))):
                with suppress(subprocess.CalledProcessError):  # (a namespace takes its end of a cable along)
                    _run("ip", *command)
        with suppress(subprocess.CalledProcessError):
            _run("ip", "link", "del", self._bridge)

    @property
    def _bridge(self) -> str:
        return f"{self._tag}b"

    def _namespace(self, host: int) -> str:
        return f"{self._tag}h{host}"

    def _link(self, host: int) -> str:
        """The bridge's end of a host's cable."""
        return f"{self._tag}v{host}"

    def _join(self, host: int) -> None:
        name, link = self._namespace(host), self._link(host)
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "link", "set", link, "master", self._bridge, "up")
        _run("ip", "-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        _run("ip", "-n", name, "link", "set", "eth0", "up")
        _run("ip", "-n", name, "link", "set", "lo", "up")

    def address(self, host: int) -> str:
        return f"{self._subnet}.{host + 1}"

    def on(self, host: int) -> list[str]:
        """What a command is put behind to run on a host."""
        return ["ip", "netns", "exec", self._namespace(host)]

    # --- what befalls links -------------------------------------------------------------------------------

    @contextmanager
    def cut(self, host: int) -> Iterator[None]:
        """A host whose cable is out."""
        _run("ip", "link", "set", self._link(host), "down")
        try:
            yield
        finally:
            _run("ip", "link", "set", self._link(host), "up")

    @contextmanager
    def mute(self, host: int) -> Iterator[None]:
        """A host that hears, and of which nothing is heard."""
        end = ("-n", self._namespace(host), "qdisc")
        with self._queue(end, "eth0", NOTHING):
            yield

    @contextmanager
    def deaf(self, host: int) -> Iterator[None]:
        """A host that is heard, and hears nothing."""
        with self._queue(("qdisc",), self._link(host), NOTHING):
            yield

    @contextmanager
    def slow(self, host: int, rate: str) -> Iterator[None]:
        """A host whose link takes so much each way, as in `2mbit`."""
        limits = ("tbf", "rate", rate, "burst", "16kb", "latency", "400ms")
        end = ("-n", self._namespace(host), "qdisc")
        with self._queue(end, "eth0", limits), self._queue(("qdisc",), self._link(host), limits):
            yield

    @contextmanager
    def impaired(self, host: int, sent: Impairment, heard: Impairment) -> Iterator[None]:
        """A host whose cable goes through a relay: what befalls the frames that it sends, and that it is to
        hear."""
        link, plug, end = self._link(host), f"{self._tag}p{host}", f"{self._tag}r{host}"
        _run("ip", "link", "add", plug, "type", "veth", "peer", "name", end)
        try:
            for device in (link, end):  # this machine is on the bridge; it must not answer on the cable, too
                Path(f"/proc/sys/net/ipv4/conf/{device}/arp_ignore").write_text("8")
            _run("ip", "link", "set", end, "up")
            _run("ip", "link", "set", link, "nomaster")
            _run("ip", "link", "set", plug, "master", self._bridge, "up")
            with closing(Relay((link, end), sent, heard)):
                yield
        finally:
            _run("ip", "link", "del", plug)
            _run("ip", "link", "set", link, "master", self._bridge)

    @contextmanager
    def _queue(self, tool: tuple[str, ...], device: str, kind: tuple[str, ...]) -> Iterator[None]:
        _run("tc", *tool, "add", "dev", device, "root", *kind)
        try:
            yield
        finally:
            _run("tc", *tool, "del", "dev", device, "root")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
