"""Messages that are larger than Kafka takes at once, cut into parts and put together again (R20). Pure."""

from __future__ import annotations

from keytide.wire.messages import Message, Part, decode, encode


def split(data: bytes, limit: int, sender: str, number: int) -> list[bytes]:
    """An encoded message as one or more Kafka values of at most about `limit` bytes (R20)."""
    if len(data) <= limit:
        return [data]
    count = -(-len(data) // limit)
    return [
        encode(Part(sender, number, part, count, data[part * limit : (part + 1) * limit]))
        for part in range(count)
    ]


class Assembler:
    """Puts parts together again, one instance per queue partition that is read.

    Parts of one message arrive in order from one sender; other senders' messages may lie between them. A part
    that is held already is a copy and ignored; one that does not continue what is held starts anew (a
    resend). A sender counts its messages: a part of an older one than what is held was under way when its
    producer failed for good, and comes among those of the next producer; it is ignored.
    """

    def __init__(self) -> None:
        self._pending: dict[str, tuple[int, int, list[bytes]]] = {}

    def feed(self, data: bytes, position: int) -> tuple[Message, int] | None:
        """The next whole message and the queue offset of its first part, or None while parts are missing.

        Args:
            data: a Kafka value.
            position: its offset in the queue.
        """
        message = decode(data)
        if not isinstance(message, Part):
            return message, position
        number, first, pieces = self._pending.get(message.sender, (-1, -1, []))
        if message.number < number or (number == message.number and message.part < len(pieces)):
            return None
        if message.part == 0:
            number, first, pieces = message.number, position, []
        elif number != message.number or len(pieces) != message.part:
            self._pending.pop(message.sender, None)
            return None
        pieces.append(message.data)
        if len(pieces) < message.count:
            self._pending[message.sender] = (number, first, pieces)
            return None
        self._pending.pop(message.sender, None)
        return decode(b"".join(pieces)), first

    def first_pending(self) -> int | None:
        """The smallest queue offset that an incomplete message begins at: a restart must read from there
        (R6)."""
        return min((first for _, first, _ in self._pending.values()), default=None)

    def forget(self, first: int) -> None:
        """Give up the incomplete message that begins at queue offset `first`: its sender is gone."""
        self._pending = {sender: held for sender, held in self._pending.items() if held[1] != first}
