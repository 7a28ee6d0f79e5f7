"""How long what is away is waited for. Pure."""

from __future__ import annotations


class Outage:
    """Runs out when nothing has got on for a while, from the first failure on. Pure.

    Args:
        most_s: seconds.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._since: float | None = None
        self._at = -1

    def over(self, finished: int, now: float) -> bool:
        """Whether to give up, after a failure.

        Args:
            finished: number of the last micro-batch that is done.
            now: seconds, of any clock that only goes on.
        """
        if self._since is None or finished > self._at:
            self._since, self._at = now, finished
        return now - self._since >= self._most_s
