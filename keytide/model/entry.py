"""One index entry as bytes: its value, and its key in the store when it is long.

Theory of operation
===================
An entry is (entry key, value). The entry key is the canonical key and the document id
(`keytide.collation`). The value holds what the key cannot: the key's forms and the included columns. Nearly
every entry has neither, and its value is b""; otherwise it is the msgpack array [forms, include_json |
nil], where `include_json` is a JSON object as the projector wrote it, passed on to rows untouched. Where the
entry key does not say the canonical key (`keytide.structure.hashed`), the array has it as its third member;
where a canonical key has several entries (`keytide.structure.spatial`), the fourth is the stored keys of all
of them, in order, which have one length.

LMDB keys are at most 511 bytes (as built by default), and stores put a byte or two of their own there. An
entry whose canonical key and id come to more than INLINE_LIMIT is *long*: the store keeps it in a second
table under `long_key`, with the full entry key in the value. A long key begins with the first LONG_PREFIX
bytes of the canonical key (its *group*, `long_group`), so the long table is in key order but for entries of
one group, which the scan sorts by their full entry keys. The digest keeps entries of one group apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from keytide.errors import InvariantViolationError

Entry = tuple[bytes, bytes]
"""(entry key, value)."""

MAX_ID_BYTES: Final = 250
"""Longest document id, in bytes of UTF-8."""
MAX_KEY_BYTES: Final = 16 * 1024
"""Longest canonical key; a document with a longer one is in the skip ledger as `key-too-large`."""
INLINE_LIMIT: Final = 500
"""Longest entry key that is an LMDB key as it is."""
LONG_PREFIX: Final = 400
"""Bytes of the canonical key that a long key begins with."""
DIGEST_BYTES: Final = 16
"""Bytes of the digest that a long key ends with."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[bytes, bytes | None]).decode
_decode_keyed = msgspec.msgpack.Decoder(tuple[bytes, bytes | None, bytes]).decode
_decode_placed = msgspec.msgpack.Decoder(tuple[bytes, bytes | None, bytes, bytes]).decode
_KEYED: Final = b"\x93"
"""How an array of three begins in msgpack."""
PLACED: Final = b"\x94"
"""The same of four: the value of a canonical key that has several entries."""


def pack_value(forms: bytes, include_json: bytes | None = None) -> bytes:
    """An entry's value; b"" when there is nothing to hold.

    Args:
        forms: from `keytide.collation.key_forms`.
        include_json: the included columns as a JSON object; None when the index includes none.
    """
    if not forms and include_json is None:
        return b""
    return _encode((forms, include_json))


def unpack_value(value: bytes) -> tuple[bytes, bytes | None]:
    """The forms and included columns of an entry's value.

    Raises:
        InvariantViolationError: `value` was not made by `pack_value`.
    """
    if not value:
        return b"", None
    try:
        return _decode(value)
    except msgspec.DecodeError as error:
        raise _undecodable(error, value) from error


def pack_keyed_value(forms: bytes, include_json: bytes | None, key: bytes, places: bytes = b"") -> bytes:
    """An entry's value that holds the canonical key as well. Else as `pack_value`.

    Args:
        places: the stored keys of all entries of that key, ascending, one after the other; b"" when this is
            the only one.
    """
    return _encode((forms, include_json, key, places) if places else (forms, include_json, key))


def unpack_keyed_value(value: bytes) -> tuple[bytes, bytes | None, bytes]:
    """The forms, included columns and canonical key of a value.

    Raises:
        InvariantViolationError: `value` was not made by `pack_keyed_value`.
    """
    try:
        if value.startswith(PLACED):
            forms, include_json, key, _ = _decode_placed(value)
            return forms, include_json, key
        return _decode_keyed(value)
    except msgspec.DecodeError as error:
        raise _undecodable(error, value) from error


def canonical_keys(values: Sequence[bytes]) -> list[bytes]:
    """The canonical keys of values that hold them. Raises as `unpack_keyed_value`."""
    placed, keyed, mark = _decode_placed, _decode_keyed, PLACED
    try:
        return [(placed(one) if one.startswith(mark) else keyed(one))[2] for one in values]
    except msgspec.DecodeError:
        return [unpack_keyed_value(value)[2] for value in values]  # which one


def places_of(value: bytes) -> bytes:
    """The stored keys of all entries of a value's canonical key, as `pack_keyed_value` has them; b"" when
    there is one only.

    Raises:
        InvariantViolationError: as `unpack_keyed_value`.
    """
    if not value.startswith(PLACED):
        return b""
    try:
        return _decode_placed(value)[3]
    except msgspec.DecodeError as error:
        raise _undecodable(error, value) from error


def check_value(value: bytes) -> bool:
    """See that a value can be read, of whatever structure (which can tell more: `Structure.check`).

    Returns:
        Whether it holds the canonical key, as all values of an index do or none.

    Raises:
        InvariantViolationError: it was made by neither `pack_value` nor `pack_keyed_value`.
    """
    keyed = value.startswith((_KEYED, PLACED))
    if keyed:
        unpack_keyed_value(value)
    else:
        unpack_value(value)
    return keyed


def _undecodable(error: Exception, value: bytes) -> InvariantViolationError:
    return InvariantViolationError("EntryDecodes", f"{error} in {value[:80].hex()} ({len(value)} bytes)")


def long_key(canonical: bytes, docid: bytes) -> bytes:
    """The key of a long entry in the long table: its group, then a digest of its entry key (<= 416 bytes)."""
    return canonical[:LONG_PREFIX] + blake2b(canonical + docid, digest_size=DIGEST_BYTES).digest()


def long_group(key: bytes) -> bytes:
    """The group of a long key: the first LONG_PREFIX bytes (or all) of the canonical keys that share it."""
    return key[:-DIGEST_BYTES]
