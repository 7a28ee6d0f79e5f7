"""Entries as indexes of each structure store them, and digests that are too short to tell keys apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

from keytide.definition.index import IndexDefinition
from keytide.model.entry import pack_keyed_value, pack_value
from keytide.structure import hashed

Made = tuple[bytes, bytes, bytes | None]
"""(canonical key, forms, included columns as JSON) of one entry."""


def as_stored(definition: IndexDefinition, made: Sequence[Made]) -> list[tuple[bytes, bytes]]:
    """(stored key, value) of the entries of one document."""
    structure = definition.structure
    keys = structure.stored([key for key, _, _ in made])
    values = [
        pack_keyed_value(forms, include, key) if structure.key_in_value else pack_value(forms, include)
        for key, forms, include in made
    ]
    return list(zip(keys, values, strict=True))


@contextmanager
def digests_of(bits: int) -> Iterator[None]:
    """Digests of so many bits, at most eight: keys collide all the time."""
    whole = hashed.digest_of

    def cut(key: bytes) -> bytes:
        first = whole(key)[0] >> (8 - bits) << (8 - bits)
        return bytes((first,)) + bytes(hashed.DIGEST_BYTES - 1)

    with mock.patch.object(hashed, "digest_of", cut):
        yield
