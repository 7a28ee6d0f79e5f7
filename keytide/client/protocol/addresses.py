"""The nodes that a client may ask, by turns, and which of them to pass over for a while. Pure.

Theory of operation
===================
Each new result goes to the next node, so that many results are spread evenly over all that answer; further
pages of a result go where its first one went. A node that gave no answer, or is not for scans, *rests*:
others are asked before it, first for 2 s, then twice as long each time, up to a minute. When that is over, a
request looks at its `/readyz` first, for half a second: so a node that accepts connections and says nothing
costs that and no more, and one that is well again has its turns. When all of them rest, all are asked as if
none did, the one that has rested longest first. (A node that answers that something is not ready does not
rest: most often an index is not, which others say as well.)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Final
from urllib.parse import urlsplit

from keytide.errors import CallerError

FIRST_REST_S: Final = 2.0
LONGEST_REST_S: Final = 60.0
"""How long a node is passed over; doubled from the first to the longest."""
LOOK_S: Final = 0.5
"""How long a request waits for a node that has rested to say that it is ready."""
_EXAMPLE: Final = "give one like http://127.0.0.1:8093 (`keytide node list` shows them)"


class NodeAddresses:
    """The nodes' addresses, and the order in which they are asked. For several threads: what two of them do
    at once may be done twice, and nothing is lost by that.

    Attributes:
        resting: whether any of them is.

    Raises:
        CallerError: no address, or something that is none.
    """

    def __init__(self, urls: str | Sequence[str]) -> None:
        listed = [urls] if isinstance(urls, str) else list(urls)
        if not listed:
            raise CallerError("a client needs the URL of an indexer node", next_step=_EXAMPLE)
        for url in listed:
            try:
                parts = urlsplit(url)
                good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            except ValueError:
                good = False
            if not good:
                raise CallerError(f"{url!r} is not the address of an indexer node", next_step=_EXAMPLE)
        self.urls: Final = [url.rstrip("/") for url in listed]
        self.resting = False
        self._turns = count()
        self._until: list[float | None] = [None] * len(self.urls)
        self._failures = [0] * len(self.urls)

    def turn(self) -> int:
        """For a new result: good for `order`, each time that something of this result is asked."""
        return next(self._turns)

    def order(self, turn: int) -> Sequence[int]:
        """Which of the nodes to ask, one after the other: indexes into `urls`."""
        if len(self.urls) == 1:
            return (0,)
        places = range(len(self.urls))
        if not self.resting:
            first = turn % len(places)
            return (*places[first:], *places[:first])
        resting = [(until, at) for at in places if (until := self._until[at]) is not None]
        awake = [at for at in places if self._until[at] is None]
        own, others = turn % len(places), turn // len(places)
        if own in awake:  # whoever else rests: a result's pages stay where they are
            first = awake.index(own)
        else:
            first = others % len(awake) if awake else 0
        return (*awake[first:], *awake[:first], *(at for _, at in sorted(resting)))

    def rest(self, at: int, now: float, *, long: bool = False) -> None:
        """A node did not answer what was asked.

        Args:
            now: seconds.
            long: nothing is gained by looking at it soon.
        """
        self._failures[at] += 1
        seconds = FIRST_REST_S * 2.0 ** min(self._failures[at] - 1, 10)
        self._until[at] = now + (LONGEST_REST_S if long else min(seconds, LONGEST_REST_S))
        self.resting = True

    def answered(self, at: int) -> None:
        """A node is well."""
        if self._until[at] is not None:
            self._until[at] = None
            self._failures[at] = 0
            self.resting = any(until is not None for until in self._until)

    def due(self, now: float) -> int | None:
        """A node that has rested long enough, while others are awake."""
        if None not in self._until:
            return None
        return next((at for at, until in enumerate(self._until) if until is not None and until <= now), None)
