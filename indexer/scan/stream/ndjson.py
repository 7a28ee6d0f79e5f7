"""Streams as lines of JSON: one row per line, as a scan's answer has rows, and nothing else.

No line but rows: what a person pipes into jq is what was asked for. That a stream is whole is said by HTTP
(the last chunk has come); one that could not be finished has a last line with the problem, and its connection
is broken off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from indexer.scan.plan.selection import Shape
from indexer.scan.shape.rows import RowMaker, encode, encode_lines
from indexer.scan.stream.block import EntryBlock

MEDIA_TYPE: Final = "application/x-ndjson"


class NdjsonForm:
    """Writes rows as lines.

    Args:
        shape: of the index.
        columns: as a scan's.
    """

    media_type: Final = MEDIA_TYPE

    def __init__(self, shape: Shape, columns: Sequence[str] | None) -> None:
        self._maker = RowMaker(shape, columns)

    def begin(self) -> bytes:
        return b""

    def rows(self, block: EntryBlock) -> bytes:
        """Lines of a block. Raises what decoding raises."""
        return encode_lines(self._maker.rows(block.entries.items()))

    def end(self) -> bytes:
        return b""

    def problem(self, document: dict[str, Any]) -> bytes:
        """The last line of a stream that cannot go on."""
        return encode({"error": document}) + b"\n"
