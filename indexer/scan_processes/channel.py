"""The socket between a node and one of its scan processes: whole messages, in order, with open folders.

The node's side never waits: what does not go at once lies here until it does (`flush`), up to a limit; past
it the channel is `broken`, and its process is ended. Folders that go along are descriptors, which the channel
closes once they went: they lead a reader to the very folder that was meant, whatever takes its name since.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from indexer.scan_processes.core.messages import PIECE, Joined, pieces

WAITING: Final = 20_000
"""Packets that may wait: a process that takes none is ended long before, by its silence."""
LOOK_S: Final = 0.5
"""How late a scan process that is told to stop looks up from listening."""
_DESCRIPTORS: Final = 32
"""That can come with one packet: three times the levels of a slice."""


class Channel:
    """The node's end.

    Attributes:
        broken: why nothing can be told any more, empty while it can.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._lock = threading.Lock()
        self._waiting: deque[tuple[bytes, list[int]]] = deque()
        self._joined = Joined()
        self.broken = ""

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def waits(self) -> bool:
        """Whether something did not go yet."""
        return bool(self._waiting)

    def tell(self, message: msgspec.Struct, folders: Sequence[int] = ()) -> None:
        """Send a message, or have it wait. From any thread.

        Args:
            folders: descriptors, the channel's from now on.
        """
        first, *others = pieces(message)
        with self._lock:
            self._waiting.append((first, list(folders)))
            self._waiting.extend((piece, []) for piece in others)
            self._send()

    def flush(self) -> None:
        """Send what waits, as far as it goes."""
        with self._lock:
            self._send()

    def heard(self) -> Iterator[bytes]:
        """Messages that have come; afterwards `broken` tells an end."""
        while not self.broken:
            try:
                packet = self._socket.recv(PIECE + 1)
            except BlockingIOError:
                return
            except OSError as error:
                self.broken = str(error)
                return
            if not packet:
                self.broken = "it has ended"
                return
            if (message := self._joined.add(packet)) is not None:
                yield message

    def close(self) -> None:
        with self._lock:
            self.broken = self.broken or "closed"
            self._forget()
            self._socket.close()

    def _send(self) -> None:
        while self._waiting and not self.broken:
            packet, folders = self._waiting[0]
            try:
                if folders:
                    socket.send_fds(self._socket, [packet], folders)
                else:
                    self._socket.send(packet)
            except BlockingIOError:
                if len(self._waiting) > WAITING:
                    self.broken = f"it has left {WAITING} messages unread"
                break
            except OSError as error:
                self.broken = str(error)
                break
            self._waiting.popleft()
            _close(folders)
        if self.broken:
            self._forget()

    def _forget(self) -> None:
        while self._waiting:
            _close(self._waiting.popleft()[1])


def read(end: socket.socket, stop: threading.Event) -> Iterator[tuple[bytes, list[int]]]:
    """The scan process's end: messages and the descriptors that came with each, the reader's from then on;
    until the node is gone, or `stop` is set."""
    joined, folders = Joined(), list[int]()
    end.settimeout(LOOK_S)
    while not stop.is_set():
        try:
            packet, came, _, _ = socket.recv_fds(end, PIECE + 1, _DESCRIPTORS)
        except TimeoutError:
            continue
        except ConnectionError:
            return
        folders += came
        if not packet:
            return
        if (message := joined.add(packet)) is not None:
            given, folders = folders, []
            yield message, given


def _close(descriptors: Sequence[int]) -> None:
    for one in descriptors:
        os.close(one)
