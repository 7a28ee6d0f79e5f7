"""What a node and its scan processes tell each other. Pure.

Both are of one release, for a node starts its scan processes itself: messages may change as the code does.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from indexer.store.interface import Applied, Counts

SliceKey = tuple[str, int]
"""(index id, slice number)."""
PIECE: Final = 32 << 10
"""Bytes of a message that go at once: less than any system keeps for one packet of a local socket."""


class LevelAt(msgspec.Struct, frozen=True, array_like=True):
    """A commit of a level.

    Attributes:
        level: the node's number for it, used once.
        commit: number of the transaction.
        map_bytes: its address space.
    """

    level: int
    commit: int
    map_bytes: int


class _Told(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One of those below."""


# --- from the node ----------------------------------------------------------------------------------------


class Welcome(_Told, frozen=True):
    """The first message.

    Attributes:
        node: id of the node.
        host, port: where to serve.
    """

    node: str
    host: str
    port: int


class Kept(_Told, frozen=True):
    """A slice holds a snapshot from now on, in place of another one of that number.

    Attributes:
        levels: from the oldest to the newest.
        opened: those of them that are told of for the first time; an open folder comes along for each.
    """

    key: SliceKey
    number: int
    applied: Applied
    counts: Counts
    levels: list[LevelAt]
    opened: list[int]


class Dropped(_Told, frozen=True):
    """A slice holds a snapshot no more."""

    key: SliceKey
    number: int


class Closed(_Told, frozen=True):
    """A slice holds nothing more."""

    key: SliceKey


class ControlRecord(_Told, frozen=True):
    """A record of the control topic."""

    position: int
    data: bytes


class DictionaryChange(_Told, frozen=True):
    """Records of the system dictionary that have changed, or were removed, by key.

    Attributes:
        offset: of the dictionary with them.
    """

    offset: int
    changed: dict[str, bytes]
    removed: list[str]


class Ping(_Told, frozen=True):
    """To be answered."""


ToScanProcess = Welcome | Kept | Dropped | Closed | ControlRecord | DictionaryChange | Ping


# --- to the node ------------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """A sample of a metric, as prometheus_client has it."""

    name: str
    labels: dict[str, str]
    value: float


class Alive(_Told, frozen=True):
    """The answer to a `Ping`; numbers count since the start of the process.

    Attributes:
        serving: it answers requests.
        pinned: snapshots that could be read.
        missed: those that could not, for the next commit had come.
        passed_on: requests that the node was left to answer.
        reads: (slice, how often it was read) since the last time.
        samples: of its metrics.
    """

    serving: bool
    pinned: int
    missed: int
    passed_on: int
    reads: list[tuple[SliceKey, int]]
    samples: list[Sample]


encoder: Final = msgspec.msgpack.Encoder()
told_decoder: Final = msgspec.msgpack.Decoder(ToScanProcess)
welcome_decoder: Final = msgspec.msgpack.Decoder(Welcome)
alive_decoder: Final = msgspec.msgpack.Decoder(Alive)


def pieces(message: msgspec.Struct) -> list[bytes]:
    """A message in packets: a byte that tells the last one, and a part of it."""
    data = encoder.encode(message)
    parts = [data[at : at + PIECE] for at in range(0, len(data), PIECE)]
    return [*(b"\x00" + part for part in parts[:-1]), b"\x01" + parts[-1]]


class Joined:
    """Joins packets to messages again."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def add(self, packet: bytes) -> bytes | None:
        """A whole message, when this was its last packet."""
        self._parts.append(packet[1:])
        if packet[:1] != b"\x01":
            return None
        parts, self._parts = self._parts, []
        return b"".join(parts)
