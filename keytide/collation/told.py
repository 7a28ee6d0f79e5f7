"""Keys in short, for those who only name them: what is told of violations and duplicates, from node to
coordinator and driver. What is read by a key needs the key."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from keytide.collation.decode import skip_key
from keytide.collation.encode import encode_part
from keytide.collation.layout import INVERTED, TAG_ARRAY, TAG_OBJECT, TAG_STRING

LONGEST_TOLD: Final = 16 * 1024
"""Bytes of the longest key that is told as it is: all keys of a btree are (`keytide.model.entry`)."""
_LONG_PART: Final = 512
"""Bytes: as many parts as a key may have, none longer, make no longer key."""
_SHOWN: Final = 100
_DIGEST_BYTES: Final = 16
_KINDS: Final = {TAG_ARRAY: "an array", TAG_OBJECT: "an object"}


def told_key(key: bytes, parts_count: int, descending: Sequence[bool] = ()) -> bytes:
    """The key that is told in the place of a canonical one: that itself, or, where it is longer than
    LONGEST_TOLD, one with strings for its long parts that say how they begin, how long they are, and a
    digest. So equal keys are told equal, different ones different, whoever tells them. (But one that is
    written like another one in short, digest and all, is told as that.)

    Args:
        parts_count, descending: as in `decode_key`.

    Returns:
        A canonical key with as many parts, of LONGEST_TOLD bytes at most; given to this again, the same.

    Raises:
        InvariantViolationError: `key` holds no such key.
    """
    if len(key) <= LONGEST_TOLD:
        return key
    parts: list[bytes] = []
    for ordinal in range(parts_count):
        down = bool(descending) and descending[ordinal]
        last = ordinal == parts_count - 1
        end = len(key) if last else skip_key(key, 1, (True,) if down else ())
        part, key = key[:end], key[end:]
        parts.append(part if len(part) <= _LONG_PART else _in_short(part, down))
    return b"".join(parts)


def _in_short(part: bytes, down: bool) -> bytes:
    tag = part[0] ^ 255 if down else part[0]
    begins = part[1 : 1 + _SHOWN]
    if tag == TAG_STRING:
        shown = (begins.translate(INVERTED) if down else begins).decode(errors="ignore") + "..."
    else:
        shown = _KINDS.get(tag, "a number")
    digest = blake2b(part, digest_size=_DIGEST_BYTES).hexdigest()
    return encode_part(f"{shown} ({len(part):,} bytes, digest {digest})", down)
