"""Blocks of streams as nodes send them: as columns, and as the release before has them."""

from __future__ import annotations

from typing import Any

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
from keytide.http.node_protocol import NodeUnavailableError
from keytide.model.byte_columns import EntryColumns

ENTRIES = [(b"a", b""), (b"b" * 300, b"v" * 70_000), (b"c\0", b"")]


@pytest.mark.parametrize("columns", [True, False], ids=["columns", "lists"])
@pytest.mark.parametrize("entries", [ENTRIES, [(key, b"") for key, _ in ENTRIES], []])
def test_blocks_are_read_as_they_were_written(entries: list[tuple[bytes, bytes]], columns: bool) -> None:
    block = EntryBlock(EntryColumns.of(entries), True, b"c\0", 5)
    found = decode_block(encode_block(block, columns=columns), "n1")
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
    assert decode_block(old, "n1").entries.items() == [(b"a", b""), (b"b", b"v")]
    # What this release asks for is read by the one before as far as that knows it.
    assert msgspec.msgpack.decode(encode_wanted(BlockWanted(5, False, columns=True)))[:2] == [5, False]
    assert len(RowBlock.__struct_fields__) == 5


TWO: bytes = b"\1\0\0\0\2\0\0\0"
"""Lengths of a string of one byte and one of two."""


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        ((TWO, b"ab"), (b"", b"")),
        ((TWO, b"abcd"), (b"", b"")),
        ((b"\xff" * 8, b"abc"), (b"", b"")),
        ((TWO[:-1], b"abc"), (b"", b"")),
        ((TWO, b"abc"), (TWO, b"v")),
        ((TWO, b"abc"), (TWO[:4], b"v")),
        ((TWO, b"abc"), (b"", b"v")),
    ],
    ids=["few", "many", "far", "torn lengths", "few values", "a value missing", "values without lengths"],
)
def test_columns_that_do_not_add_up_are_no_answer(
    keys: tuple[bytes, bytes], values: tuple[bytes, bytes]
) -> None:
    well = msgspec.msgpack.encode([TWO, b"abc", TWO, b"uvw", False, b"", 2])
    assert decode_block(well, "n1").entries.items() == [(b"a", b"u"), (b"bc", b"vw")]
    refused([*keys, *values, False, b"", 2])


def test_lists_that_do_not_go_together_are_no_answer() -> None:
    refused([[b"a", b"b"], [b"v"], False, b"", 2])


@pytest.mark.parametrize("data", [b"", b"\x97", b"\xc0", b"\x95\x01"])
def test_bytes_that_are_no_block_are_no_answer(data: bytes) -> None:
    refused(data)


def refused(answer: Any) -> None:
    """An answer is taken for none, and it is said whose it is."""
    with pytest.raises(NodeUnavailableError, match="node n1") as caught:
        decode_block(answer if isinstance(answer, bytes) else msgspec.msgpack.encode(answer), "n1")
    assert caught.value.extra == {"node": "n1"}
