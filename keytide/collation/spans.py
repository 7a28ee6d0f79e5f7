"""Spans: which stretch of the entry keys a selection means.

A bound is a prefix of the key's parts. As no code word is a prefix of another, the entry keys that begin
with the bytes of a bound are exactly the entries whose first parts equal it, and they lie together between
those bytes and their `successor`.

Directions. An index on descending parts holds its entries the other way round, but `low <= key <= high`
means the same values with or without DESC. So, behind the parts that both bounds share:

* if all bounded parts ascend, low is where the stretch starts and high where it ends;
* if all of them descend, the two change places: the stretch starts at high (this covers the usual case,
  equal leading parts and a range over one part, for any mix of directions);
* if directions are mixed there (`low = ["A", 3]`, `high = ["B"]` on `(city, n DESC)`), the values between
  the bounds are not one stretch of the index. Then the bounds are places in the index's own order: scan
  from low, wherever it stands, to high.

`inclusive` belongs to the bound, not to the end of the stretch at which it comes to stand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from keytide.collation.encode import encode_key, encode_part, encode_text
from keytide.collation.layout import INVERTED, TAG_STRING, Value
from keytide.errors import CallerError, invariant


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of entry keys: `low <= entry key < high`.

    Attributes:
        low: first bytes that belong to it; b"" from the beginning.
        high: first bytes that do not; None to the end.
    """

    low: bytes = b""
    high: bytes | None = None

    @property
    def empty(self) -> bool:
        """Whether no entry key can lie in it."""
        return self.high is not None and self.low >= self.high

    def __contains__(self, entry_key: bytes) -> bool:
        return self.low <= entry_key and (self.high is None or entry_key < self.high)


ALL: Final = Span()
EMPTY: Final = Span(b"", b"")


def span(
    low: Sequence[Value] | None,
    high: Sequence[Value] | None,
    low_inclusive: bool,
    high_inclusive: bool,
    descending: Sequence[bool],
    parts_count: int,
) -> Span:
    """The entries between two bounds, by value where that is one stretch (see above for mixed directions).

    Args:
        low: leading parts of the lower bound; None or empty for no bound.
        high: leading parts of the upper bound; None or empty for no bound.
        low_inclusive: whether entries that equal `low` in its parts belong to it.
        high_inclusive: whether entries that equal `high` in its parts belong to it.
        descending: the index's directions, or empty when every part ascends.
        parts_count: how many parts the index's key has.

    Returns:
        The span; `EMPTY` when the bounds exclude every key.

    Raises:
        CallerError: a bound has more parts than the key, or one that no key holds (NotIndexableError).
    """
    low_parts = _encode_parts(low or (), descending, parts_count)
    high_parts = _encode_parts(high or (), descending, parts_count)
    if _descends(low_parts, high_parts, descending):
        low_parts, high_parts = high_parts, low_parts
        low_inclusive, high_inclusive = high_inclusive, low_inclusive
    start, stop = b"".join(low_parts), b"".join(high_parts)
    return _span(
        start if low_inclusive or not start else successor(start),
        (successor(stop) if high_inclusive else stop) if stop else None,
    )


def equals_span(parts: Sequence[Value], descending: Sequence[bool], parts_count: int) -> Span:
    """The entries whose first parts equal `parts`; all entries for no parts.

    Raises:
        CallerError: there are more parts than the key has, or one that no key holds.
    """
    return _starting_with(b"".join(_encode_parts(parts, descending, parts_count)))


def prefix_span(
    leading_parts: Sequence[Value], string_prefix: str, descending: Sequence[bool], parts_count: int
) -> Span:
    """The entries with these leading parts and, as the next part, a string that starts with `string_prefix`.

    Raises:
        CallerError: the key has no such next part, or `string_prefix` is no valid Unicode.
    """
    _check_count(len(leading_parts) + 1, parts_count)
    prefix = bytes((TAG_STRING,)) + encode_text(string_prefix)
    if descending and descending[len(leading_parts)]:
        prefix = prefix.translate(INVERTED)
    return _starting_with(encode_key(leading_parts, descending) + prefix)


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """The same entries as disjoint spans in order; overlapping or touching ones become one, empty ones go."""
    found = [one for one in spans if not one.empty]
    if len(found) < 2:
        return found
    merged: list[Span] = []
    for following in sorted(found, key=lambda one: one.low):
        last = merged[-1] if merged else None
        if last is None or (last.high is not None and last.high < following.low):
            merged.append(following)
        elif last.high is not None and (following.high is None or following.high > last.high):
            merged[-1] = Span(last.low, following.high)
    return merged


def successor(prefix: bytes) -> bytes:
    """The least bytes above all that start with `prefix`, which holds a byte below FF (encoded keys do)."""
    stem = prefix.rstrip(b"\xff")
    invariant(stem, "KeyShape", "no bytes lie above every continuation of this prefix")
    return stem[:-1] + bytes((stem[-1] + 1,))


def _encode_parts(parts: Sequence[Value], descending: Sequence[bool], parts_count: int) -> list[bytes]:
    _check_count(len(parts), parts_count)
    return [encode_part(part, bool(descending) and descending[at]) for at, part in enumerate(parts)]


def _check_count(count: int, parts_count: int) -> None:
    if count > parts_count:
        raise CallerError(
            f"{count} key parts were given, the index has {parts_count}",
            status=422,
            next_step="Give the index's key parts from the left, all of them or fewer.",
        )


def _descends(low: Sequence[bytes], high: Sequence[bytes], descending: Sequence[bool]) -> bool:
    """Whether every bounded part behind the parts that both bounds share descends."""
    shared = 0
    while shared < min(len(low), len(high)) and low[shared] == high[shared]:
        shared += 1
    bounded = descending[shared : max(len(low), len(high))]
    return bool(bounded) and all(bounded)


def _starting_with(prefix: bytes) -> Span:
    return Span(prefix, successor(prefix)) if prefix else ALL


def _span(low: bytes, high: bytes | None) -> Span:
    made = Span(low, high)
    return EMPTY if made.empty else made
