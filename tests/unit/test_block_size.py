"""Blocks of streams are bounded in bytes, whatever is asked for (`indexer.scan.stream.block`)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.scan.local.tasks import SliceWork
from indexer.scan.peer.messages import ReadConsistency, ReadPaging, ReadRequest, ReadShape, ReadSpan
from indexer.scan.stream.block import TASK, BlockWanted, decode_block, encode_wanted, read_block
from keytide.collation import encode_key
from keytide.definition.expression import IsNull, Not, Path
from keytide.model.timestamp import Timestamp
from tests import share
from tests.unit.scan_world import Doc, FakeSnapshot, definition_of

CITY = "CREATE INDEX by_city ON users (city) INCLUDE (x)"
ANY_CITY = msgspec.json.encode(Not(IsNull(Path(("city",)))))


def test_a_block_of_one_key_is_bounded() -> None:
    """Rows of 200 kB: a block of 4 MiB has 21 of them, not as many as were asked for."""
    docs = [Doc(["k"], f"d{at:03}", b'{"x":"%s"}' % (b"x" * 200_000)) for at in range(60)]
    sizes = [len(rows) for rows in blocks(docs, 4 << 20, 256, keys=frozenset([encode_key(["k"])]))]
    assert sizes == [21, 21, 18]


@pytest.mark.parametrize("shape", [{}, {"filter": ANY_CITY}, {"distinct": True}])
@settings(max_examples=share.examples(50), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9).map(str), st.integers(0, 300)), max_size=40),
    st.integers(0, 1_000),
    st.integers(1, 50),
    st.booleans(),
)
def test_no_block_is_larger_than_its_bound_by_more_than_a_row(
    shape: dict[str, Any], rows: list[tuple[str, int]], most: int, limit: int, reverse: bool
) -> None:
    docs = [Doc([key], f"d{at:03}", b'{"x":"%s"}' % (b"x" * size)) for at, (key, size) in enumerate(rows)]
    found = blocks(docs, most, limit, reverse=reverse, **shape)
    for block in found:
        assert len(block) <= limit
        assert len(block) <= 1 or sum(len(key) + len(value) for key, value in block[:-1]) < most
    keys = [key for block in found for key, _ in block]
    if shape.get("distinct"):
        assert keys == sorted({encode_key([key]) for key, _ in rows}, reverse=reverse)
    else:
        assert keys == sorted((doc.entry([False])[0] for doc in docs), reverse=reverse)


def blocks(
    docs: list[Doc], most: int, limit: int, *, reverse: bool = False, **shape: Any
) -> list[list[tuple[bytes, bytes]]]:
    """All that one slice gives, block by block.

    Args:
        most: bytes of a block.
    """
    snapshot = FakeSnapshot(1, 0, Timestamp(), [doc.entry([False]) for doc in docs])
    snapshot.take()
    view: Any = None
    after, found = b"", list[list[tuple[bytes, bytes]]]()
    while True:
        request = ReadRequest(
            ReadSpan("i", [0], [(b"", None)], [after], reverse),
            ReadPaging(limit),
            ReadConsistency(1, 0),
            ReadShape(task=TASK, body=encode_wanted(BlockWanted(most, include=True, columns=True)), **shape),
        )
        work = SliceWork(request, 0, snapshot, definition_of(CITY), after, view)
        block = decode_block(read_block(work), "n0")
        found.append(block.entries.items())
        if not block.more:
            return found
        after = block.reached
