"""What a client has seen, for several threads and tasks at the same time."""

from __future__ import annotations

import threading


class Session:
    """What the client has seen: tokens, none of which says what another one says. For several threads.

    An answer's session covers the sessions that were sent with its request. So the answers of requests that
    ran one after the other leave one token, and those of requests at the same time as many as there were: the
    next request sends them all, and its answer takes their place.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens: tuple[str, ...] = ()
        self._resets = 0

    @property
    def token(self) -> str | None:
        """All tokens as one, None for none."""
        return ",".join(self._tokens) or None

    def sending(self) -> tuple[str | None, int]:
        """What to send, and what to give back to `seen`."""
        with self._lock:
            return self.token, self._resets

    def seen(self, sent: str | None, resets: int, token: str) -> None:
        """An answer came to a request that was sent with `sent`; forgotten if there was a reset since."""
        with self._lock:
            if resets == self._resets:
                covered = {token, *(sent.split(",") if sent else ())}
                self._tokens = (*(one for one in self._tokens if one not in covered), token)

    def reset(self, token: str | None = None) -> None:
        """Have seen what `token` says and nothing else."""
        with self._lock:
            self._resets += 1
            self._tokens = tuple(token.split(",")) if token else ()
