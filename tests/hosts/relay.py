"""A cable that takes time and loses frames. Kernels have `netem` for that, but not every one (a virtual
machine's often has not), so a thread carries frames from one end to the other here, until it is closed.

Frames come and go by packet sockets (packet(7)), with the header that says what the kernel has left undone of
them (checksums, parting into packets that fit: PACKET_VNET_HDR), for both ends are on this machine.
"""

from __future__ import annotations

import random
import selectors
import socket
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

from keytide.process.worker import Worker, logged

_SOL_PACKET: Final = 263
_VNET_HDR, _IGNORE_OUTGOING = 15, 23
_ETH_P_ALL: Final = 3
_FRAME: Final = 1 << 17
_BUFFER: Final = 1 << 23
_IDLE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Impairment:
    """What befalls frames that go one way.

    Attributes:
        delay_s: seconds that each takes longer.
        loss: share that is lost.
    """

    delay_s: float = 0.0
    loss: float = 0.0


class _Way:
    """Frames on their way from one end to the other."""

    def __init__(self, taken: socket.socket, given: socket.socket, by: Impairment) -> None:
        self.taken, self._given, self._by = taken, given, by
        self._chance = random.Random(1)
        self._frames: deque[tuple[float, bytes]] = deque()

    def take(self, now: float) -> None:
        frame = self.taken.recv(_FRAME)
        if self._chance.random() >= self._by.loss:
            self._frames.append((now + self._by.delay_s, frame))

    def give(self, now: float) -> float:
        """Pass on what is due; seconds until more is."""
        while self._frames and self._frames[0][0] <= now:
            try:
                self._given.send(self._frames.popleft()[1])
            except OSError:  # an end that is down, or full, loses frames as cables do
                continue
        return self._frames[0][0] - now if self._frames else _IDLE_S


class Relay:
    """Between two devices until it is closed.

    Args:
        devices: names of both ends, in this namespace.
        there, back: what befalls frames that come in at the first one, and at the second one.
    """

    def __init__(self, devices: tuple[str, str], there: Impairment, back: Impairment) -> None:
        first, second = (_end(device) for device in devices)
        self._ends = (first, second)
        self._ways = (_Way(first, second, there), _Way(second, first, back))
        self._thread = Worker("relay", logged, self._run)
        self._thread.open()

    def close(self) -> None:
        self._thread.close()
        for end in self._ends:
            end.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for way in self._ways:
                selector.register(way.taken, selectors.EVENT_READ, way)
            while not self._thread.stopping.is_set():
                now = time.monotonic()
                rest = min(way.give(now) for way in self._ways)
                for key, _ in selector.select(max(0.0, rest)):
                    key.data.take(time.monotonic())


def _end(device: str) -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    end.setsockopt(_SOL_PACKET, _VNET_HDR, 1)
    end.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
    end.bind((device, 0))
    return end
