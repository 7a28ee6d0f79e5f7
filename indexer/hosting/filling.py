"""What fills copies of slices for a node: what its hosting asks of it. (`indexer.copying.worker` is one.)"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

from keytide.catalog.records import CopyRecord


class FillProgress(NamedTuple):
    """How far a copy is.

    Attributes:
        rows: that it has.
        rows_total: that it will have; 0 when that is not known yet.
        error: why it waits at the moment; "" when it does not.
        done: it is all there, and its folder closed: a slice's store.
    """

    rows: int = 0
    rows_total: int = 0
    error: str = ""
    done: bool = False


class CopyFiller(Protocol):
    """Fills copies beside everything else. All methods return at once."""

    def begin(self, copy: CopyRecord, folder: Path) -> None:
        """Fill what is in a folder on, or from the beginning. Again with the same id: its record has changed
        (it is filled from another source, say)."""
        ...

    def look(self, id_: str) -> FillProgress:
        """How far a copy is; one that was not begun has nothing."""
        ...

    def leave(self, id_: str) -> None:
        """Stop; what is on the disk stays, and may be deleted. What is at hand is still finished, and
        another copy in the same folder begins when that is done."""
        ...
