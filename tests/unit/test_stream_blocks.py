"""Blocks of streams as nodes send them: as columns, and as the release before has them."""

from __future__ import annotations

import msgspec
import pytest

from indexer.scan.stream.block import (
    BlockWanted,
    EntryBlock,
    RowBlock,
    decode_block,
    encode_block,
    encode_wanted,
)
from keytide.model.byte_columns import EntryColumns

ENTRIES = [(b"a", b""), (b"b" * 300, b"v" * 70_000), (b"c\0", b"")]


@pytest.mark.parametrize("columns", [True, False], ids=["columns", "lists"])
@pytest.mark.parametrize("entries", [ENTRIES, [(key, b"") for key, _ in ENTRIES], []])
def test_blocks_are_read_as_they_were_written(entries: list[tuple[bytes, bytes]], columns: bool) -> None:
    block = EntryBlock(EntryColumns.of(entries), True, b"c\0", 5)
    found = decode_block(encode_block(block, columns=columns))
    assert found.entries.items() == entries
    assert (found.entries.values is None) == (not any(value for _, value in entries))
    assert (found.more, found.reached, found.examined) == (True, b"c\0", 5)


def test_the_release_before_is_answered_in_lists_and_heard() -> None:
    """Its request has two members, and its answer is an array of five: keys and values as arrays."""
    asked = msgspec.msgpack.decode(msgspec.msgpack.encode([1_000, True]), type=BlockWanted)
    assert not asked.columns
    block = EntryBlock(EntryColumns.of(ENTRIES[:1]), False, b"", 1)
    assert msgspec.msgpack.decode(encode_block(block, columns=asked.columns)) == [[b"a"], [], False, b"", 1]
    old = msgspec.msgpack.encode([[b"a", b"b"], [b"", b"v"], True, b"b", 2])
    assert decode_block(old).entries.items() == [(b"a", b""), (b"b", b"v")]
    # What this release asks for is read by the one before as far as that knows it.
    assert msgspec.msgpack.decode(encode_wanted(BlockWanted(5, False, columns=True)))[:2] == [5, False]
    assert len(RowBlock.__struct_fields__) == 5
