"""Why a read has no snapshot to answer from. Pure."""

from __future__ import annotations

from keytide.errors import CallerError, RetryableError


class TimestampNotReachedError(RetryableError):
    """The wait for a demanded moment ran out; `waited_for` has each thing once, sixteen at most."""

    problem_type = "timestamp-not-reached"
    status = 504


class CountTimeoutError(RetryableError):
    """Counting took longer than the request allows.

    Args:
        count: how many were counted.
        timeout_s: in which time.
    """

    problem_type = "count-timeout"
    status = 504

    def __init__(self, count: int, timeout_s: float) -> None:
        super().__init__(
            f"{count} were counted in {timeout_s:.1f} s, and there are more",
            next_step="allow more with timeout_ms, or count a narrower span",
        )


class PageSnapshotGoneError(CallerError):
    """The snapshot of a page token is no longer held."""

    problem_type = "snapshot-gone"
    status = 410


class PageTokenTooLargeError(CallerError):
    """What is asked for is so long that no request could bring the token of the next page back.

    Args:
        size: bytes that a request for it would have, about.
        most: bytes that this server takes.
    """

    problem_type = "page-token-too-large"
    status = 422

    def __init__(self, size: int, most: int) -> None:
        super().__init__(
            f"there are more rows, but a request for the next page would have {size} bytes, for it names "
            f"what was asked for, and this server takes {most} (http.max_body_bytes)",
            next_step="ask for all rows in one page (`limit`), for fewer or shorter keys, or for a stream, "
            "which has no page tokens",
        )


class UnknownIndexError(CallerError):
    """No index bears the name."""

    problem_type = "unknown-index"
    status = 404


class IndexNotReadyError(RetryableError):
    """The index has no snapshot to answer from: it is being built, or slices that the scan needs are catching
    up, rolled back, or rebuilt."""

    problem_type = "index-not-ready"
    status = 503


class RollingBackError(IndexNotReadyError):
    """The keyspace was rolled back, and its slices hold no common snapshot since (R32). Soon over."""


class SnapshotMissingError(Exception):
    """A slice does not hold the snapshot. Internal: the endpoint turns it into a new try or a typed error.

    Attributes:
        elsewhere: why other copies of the slice have not answered in its place.
    """

    def __init__(self, slice_number: int, node: str, newest: int, state: str = "", reason: str = "") -> None:
        super().__init__(slice_number, node, newest, state, reason)
        self.slice = slice_number
        self.node = node
        self.newest = newest
        self.state = state
        self.reason = reason
        self.elsewhere: list[Exception] = []

    def raise_if_passing(self) -> None:
        """Raise what hinders another copy, which may hold the snapshot, and answer again soon."""
        for error in self.elsewhere:
            if isinstance(error, RetryableError):
                raise error from self


class TooManyTailsError(RetryableError):
    """The node runs as many tails as it may."""

    problem_type = "too-many-tails"
    status = 503


def catching_up(missing: SnapshotMissingError) -> RetryableError:
    """What the reader of newest states is told when a slice cannot show any that are not older than what it
    or its session has shown."""
    return RetryableError(
        f"slice {missing.slice} is catching up on node {missing.node}"
        + (f": {missing.reason}" if missing.reason else ""),
        problem_type="index-not-ready",
        next_step="ask again in a moment; see `keytide status`",
    )
