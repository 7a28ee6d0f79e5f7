"""Splits of a RANGE index from a sample of its entries. Pure.

Theory of operation
===================
Keys are put into slices in order, each slice taking its even share of what is left; a key goes whole to one
side. A value that more documents have than an even share gets a slice of its own, and does not count in the
shares of the others. With fewer values than slices each value has a slice.

A split is the first key of its slice. One that takes more than `MAX_SPLIT_BYTES` is shortened, if it is a
string, to the shortest beginning that still lies above the key before it; if that does not help, the slice
ends at another key.

There are always one split less than slices. Those that the sample has no use for are equal to the last one,
and the slices between are empty; without any sample all of them are null, so that the last slice has nearly
everything.
"""

from __future__ import annotations

from collections.abc import Sequence

from keytide.collation import encode_part
from keytide.collation.layout import ESCAPED_NUL, NUL, STRING_END, TAG_STRING
from keytide.definition.index import MAX_SPLIT_BYTES

KEY_BYTES = 2_048
"""Of a longer partition key the sample keeps so many bytes: enough to order it."""


def splits_of(keys: Sequence[bytes], weights: Sequence[int], slices: int) -> tuple[bytes, ...]:
    """The splits that share out a sample evenly.

    Args:
        keys: different partition keys (encoded values), ascending; long ones may be cut to `KEY_BYTES`.
        weights: how many entries each stands for.
        slices: of the index.
    """
    heavy = _heavy(weights, slices)
    heavies = sum(weight > heavy for weight in weights)
    light = sum(weight for weight in weights if weight <= heavy)
    splits: list[bytes] = []
    taken, full = 0, False  # of the slice that is being filled
    for at, (key, weight) in enumerate(zip(keys, weights, strict=True)):
        room = slices - len(splits) - heavies  # for the light ones, with the slice that is being filled
        if weight > heavy:
            ends = full or (taken > 0 and 2 * taken * room >= light)
        elif full:
            ends = room > 1
        else:
            # It ends before the key if that is nearer to its share than ending behind it.
            ends = taken > 0 and room > 1 and (2 * taken + weight) * room > 2 * light
        split = separator(keys[at - 1], key) if ends and len(splits) < slices - 1 else None
        if split is not None:
            splits.append(split)
            light -= 0 if full else taken
            taken, full = 0, False
        if weight > heavy:
            heavies, full = heavies - 1, True
            light -= taken
            taken = 0
        elif full:
            light -= weight
        else:
            taken += weight
    last = splits[-1] if splits else _alone(keys)
    return (*splits, *[last] * (slices - 1 - len(splits)))


def _heavy(weights: Sequence[int], slices: int) -> float:
    """The weight above which a key gets a slice of its own: more than an even share of all lighter ones."""
    light, room = sum(weights), slices
    for weight in sorted(weights, reverse=True):
        if room <= 1 or weight * room <= light:
            break
        light, room = light - weight, room - 1
    return light / room


def separator(before: bytes, key: bytes) -> bytes | None:
    """An encoded value above `before` and not above `key`, short enough to be a split; None when none is
    found."""
    if len(key) <= MAX_SPLIT_BYTES:
        return key
    text, previous = _text(key), _text(before)
    if text is None:
        return None
    shared = 0
    if previous is not None:
        most = min(len(text), len(previous))
        shared = next((at for at in range(most) if text[at] != previous[at]), most)
    short = encode_part(text[: shared + 1])
    return short if len(short) <= MAX_SPLIT_BYTES else None


def _text(key: bytes) -> str | None:
    """The string that a key is, as far as it was kept; None when it is none."""
    if not key or key[0] != TAG_STRING:
        return None
    end = key.find(STRING_END)
    body = key[1:] if end < 0 else key[1:end]
    return body.replace(ESCAPED_NUL, NUL).decode(errors="ignore")


def _alone(keys: Sequence[bytes]) -> bytes:
    """The split when there is nothing to part: at the only value, which then is in the last slice."""
    fits = keys and len(keys[0]) <= MAX_SPLIT_BYTES
    return keys[0] if fits else encode_part(None)
