"""Reading a slice with a filter, by distinct keys, or behind an offset: finding what is wanted among more.

Theory of operation
===================
All of these may look at many entries and give few, so one read looks at a bounded number, and says where it
got to (`SliceReply.reached`); whoever asked comes again.

Distinct keys are taken from blocks: of a block the first entry of each key, and then the read goes on behind
the last key, however many entries that still has. Blocks are small at first and grow while most of a
block's entries have keys of their own, so both kinds of index are read fast: many entries per key (one seek
each), and few (few seeks).

Any thread may read; nothing here waits. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from indexer.scan.local.entry_bytes import bytes_of, reaching
from indexer.scan.local.filtering import EntryTest, Filters, key_test, picked
from indexer.scan.local.once import NotShortError, OneByOne, SoonDone
from indexer.scan.local.tasks import UNHURRIED, Pace, SliceWork, Task, Unfinished
from indexer.scan.peer.messages import Entry, IndexUnknownHereError, ReadRequest, UnknownTaskError
from indexer.scan.plan.selection import Shape, stretches
from indexer.view import DoubtfulReadError, NodeView, ReadableSnapshot
from keytide.definition.index import IndexDefinition
from keytide.errors import UNDECODABLE, InvariantViolationError
from keytide.model.entry import pack_value, unpack_value

EXAMINED: Final = 50_000
"""Entries that one read looks at in a slice when it filters, counts or skips: some tens of milliseconds. It
is not a setting: `timeout_ms` bounds the whole, this only how it is divided."""
REMEMBERED: Final = 1_000
"""Indexes whose shapes are kept."""
FIRST_BLOCK: Final = 8
LARGEST_BLOCK: Final = 512
"""Entries that are looked at between two seeks for distinct keys: a seek costs as much as some tens."""
JOINED_BYTES: Final = 256 * 1024
"""Of blocks that are looked at together."""
INLINE_BLOCKS: Final = 24
"""Of the store, a thousand rows each, that are looked at on the event loop for so few rows: some 10 ms."""
INLINE_BYTES: Final = 4 << 20
"""Of entries that are read on the event loop: copying them takes a millisecond or two."""


@dataclass(slots=True)
class FilteredRead:
    """What was found, while it grows.

    Attributes:
        entries: what is given, at most the request's limit; nothing when it only counts.
        more: whether there may be further ones behind `reached`.
        skipped: how many were left out for the offset.
        examined: how many entries were looked at.
        counted: how many there were, when the request only counts.
        room: bytes of keys and values that may still be given, by the row that exceeds them; None for any.
    """

    entries: list[Entry] = field(default_factory=list)
    more: bool = False
    reached: bytes = b""
    skipped: int = 0
    examined: int = 0
    counted: int = 0
    room: int | None = None

    @property
    def found(self) -> tuple[list[Entry], bool, bytes, int]:
        """The entries, whether there is more, where it got to, and how many were looked at."""
        return self.entries, self.more, self.reached, self.examined

    def take(self, found: Sequence[Entry], request: ReadRequest) -> bool:
        """Count, leave out or give what was found; whether the limit is reached, of rows or of bytes."""
        if not request.paging.limit:
            self.counted += len(found)
            return False
        if self.skipped < request.paging.skip:
            left_out = min(request.paging.skip - self.skipped, len(found))
            self.skipped += left_out
            found = found[left_out:]
        if request.shape.keys_only:
            found = without_values(found)
        full = self.room is not None and found and self._fill(self.room, found)
        self.entries += found[:full] if full else found
        return bool(full) or len(self.entries) >= request.paging.limit

    def _fill(self, room: int, found: Sequence[Entry]) -> int:
        """How many of the rows there is room for, one at least; 0 when some is left behind all of them."""
        size = bytes_of(found)
        if size >= room:
            return reaching(found, room)
        self.room = room - size
        return 0


class SliceSearch:
    """Finds what requests want in slices of a node, where that is not just the first entries.

    Args:
        tasks: what slices can work out, by name.
        examined: see `EXAMINED`.
    """

    def __init__(self, view: NodeView, tasks: Mapping[str, Task], examined: int) -> None:
        self.examined = examined
        self._view = view
        self._tasks = tasks
        self._filters = Filters()
        self._shapes: dict[str, Shape] = {}

    def find(
        self,
        request: ReadRequest,
        snapshot: ReadableSnapshot,
        after: bytes,
        pace: Pace,
        soon: SoonDone | None = None,
    ) -> FilteredRead:
        """What a read finds that may look at much.

        Args:
            snapshot: with all of its entries.
            soon: what it looks at, about; as much as a read does if it is not given.

        Raises:
            DoubtfulReadError: what it looks at cannot have been written.
            NotShortError: it does not.
        """
        try:
            index, test = request.span.index, None
            if request.shape.filter or request.shape.keys:
                test = self._filters.test(index, self._definition(index), request.shape)
            shape = self.shape(index)
            if shape.structure.several:
                test = OneByOne(request.span.spans, test, soon)
            most, room = soon.rows if soon else self.examined, request.paging.room or None
            return search_slice(snapshot, request, after, shape, test, most, pace, room)
        except (InvariantViolationError, UnicodeDecodeError) as error:
            raise DoubtfulReadError(f"an entry cannot be read ({error})") from error

    def all_wanted(self, entries: Sequence[Entry], request: ReadRequest) -> bool:
        """Whether all of these entries have keys that a request asks for.

        Raises:
            DoubtfulReadError: one cannot have been written.
        """
        has_key = key_test(self.shape(request.span.index).structure, request.shape.keys)
        try:
            return all(has_key(*entry) for entry in entries)
        except InvariantViolationError as error:
            raise DoubtfulReadError(f"an entry cannot be read ({error})") from error

    def work(
        self, request: ReadRequest, slice_number: int, snapshot: ReadableSnapshot, after: bytes, pace: Pace
    ) -> bytes | Unfinished:
        """What the request's task works out on a slice.

        Raises:
            UnknownTaskError: there is no such task, or it does not understand its arguments.
        """
        unknown = UnknownTaskError(
            f"node {self._view.node_id} does not know how to work out {request.shape.task}",
            next_step="run the same release on every node",
        )
        task = self._tasks.get(request.shape.task)
        if task is None:
            raise unknown
        definition = self._definition(request.span.index)
        try:
            return task(SliceWork(request, slice_number, snapshot, definition, after, self._view, pace))
        except UNDECODABLE as error:  # of its arguments: of an entry it is damage
            raise unknown from error

    def shape(self, index: str) -> Shape:
        """An index's, worked out once: ids are not used again.

        Raises:
            IndexUnknownHereError: as `_definition`.
        """
        shape = self._shapes.get(index)
        if shape is None:
            shape = Shape.of(self._definition(index))
            if len(self._shapes) >= REMEMBERED:
                self._shapes.clear()
            self._shapes[index] = shape
        return shape

    def _definition(self, index: str) -> IndexDefinition:
        """An index's.

        Raises:
            IndexUnknownHereError: this node does not know it: it was dropped, or is too new.
        """
        record = self._view.catalog().index(index)
        if record is None:
            raise IndexUnknownHereError(
                f"node {self._view.node_id} knows no index {index}", next_step="try again in a moment"
            )
        return record.definition


def search_slice(
    snapshot: ReadableSnapshot,
    request: ReadRequest,
    after: bytes,
    shape: Shape,
    test: EntryTest | None,
    most: int,
    pace: Pace,
    room: int | None = None,
) -> FilteredRead:
    """What a request finds in a slice.

    Args:
        after: where to go on.
        test: the request's filter.
        most: entries to look at.
        pace: how much of the node it may take.
        room: see `FilteredRead`.

    Raises:
        OutOfTimeError, GivenUpError: as `Pace.look`.
        InvariantViolationError, UnicodeDecodeError: what is read cannot have been written.
    """
    result = FilteredRead(room=room)
    spans = list(stretches(request.span, after))
    if not request.shape.distinct:
        _each(snapshot, spans, request, test, most, result, pace)
        return result
    for low, high in spans:
        if _distinct(snapshot, low, high, request, shape, test, most, result, pace):
            break
    return result


def _each(
    snapshot: ReadableSnapshot,
    spans: Sequence[tuple[bytes, bytes | None]],
    request: ReadRequest,
    test: EntryTest | None,
    most: int,
    result: FilteredRead,
    pace: Pace,
) -> None:
    """Pick from some stretches, until the read ends."""
    blocks = snapshot.rows_of(spans, request.span.reverse)
    if pace is UNHURRIED:  # fewer and larger ones, for what is looked at as columns
        blocks = _joined(blocks, min(4 * request.paging.limit, most // 2))
    for part in (part for block in blocks for part in pace.parts(block)):
        result.examined += len(part)
        full = result.take(part if test is None else picked(test, part), request)
        if full:
            del result.entries[request.paging.limit :]
            result.more, result.reached = True, result.entries[-1][0]
            return
        if result.examined >= most or pace.spent:
            result.more, result.reached = True, part[-1][0]
            return


def _joined(blocks: Iterable[list[Entry]], least: int) -> Iterator[list[Entry]]:
    """The same entries in blocks of so many at least, or of `JOINED_BYTES`."""
    held: list[Entry] = []
    size = 0
    for block in blocks:
        held += block
        size += sum(len(value) for _, value in block)
        if len(held) >= least or size >= JOINED_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def _distinct(
    snapshot: ReadableSnapshot,
    low: bytes,
    high: bytes | None,
    request: ReadRequest,
    shape: Shape,
    test: EntryTest | None,
    most: int,
    result: FilteredRead,
    pace: Pace,
) -> bool:
    """Pick the first entry of each key from a stretch; whether the read ends within it. Entries come without
    ids and included columns: their key is the canonical key alone."""
    reverse = request.span.reverse
    size = FIRST_BLOCK
    while high is None or low < high:
        block = [entry for part in snapshot.rows(low, high, reverse, size) for entry in part]
        if not block:
            return False
        found, keys, ended = _firsts(block, shape, test)
        result.examined += len(block)
        size = min(2 * size, LARGEST_BLOCK) if 2 * keys >= len(block) else max(1, size // 4)
        place = behind(ended, reverse) if ended else block[-1][0]
        if result.take(found, request):
            del result.entries[request.paging.limit :]
            result.more, result.reached = True, behind(result.entries[-1][0], reverse)
            return True
        pace.look()
        if result.examined >= most or pace.spent:
            result.more, result.reached = True, place
            return True
        if reverse:
            high = place
        else:
            low = place + b"\x00"
    return False


def _firsts(block: list[Entry], shape: Shape, test: EntryTest | None) -> tuple[list[Entry], int, bytes]:
    """The first entry of each key in a block that is wanted, as (canonical key, forms); how many keys the
    block has; and its last key if it needs no further look, else b""."""
    found: list[Entry] = []
    keys = 0
    canonical, taken = b"", False
    for key, value in block:
        if not canonical or not key.startswith(canonical):
            canonical, taken = key[: shape.structure.id_start(key)], False
            keys += 1
        if not taken and (test is None or test(key, value)):
            taken = True
            forms, include = unpack_value(value)
            found.append((canonical, value if include is None else pack_value(forms)))
    return found, keys, canonical if taken else b""


def behind(canonical: bytes, reverse: bool) -> bytes:
    """The place behind all entries of a key, in the direction of a read: ids, which are UTF-8, hold no FF,
    and no canonical key is the beginning of another one."""
    return canonical if reverse else canonical + b"\xff"


def entries_of(
    snapshot: ReadableSnapshot, request: ReadRequest, after: bytes, pace: Pace | None
) -> tuple[list[Entry], bool]:
    """The first entries behind `after`, over all spans in the direction of the read, as many as a request
    allows; and whether they are that many, or as many bytes.

    Raises:
        NotShortError: without a pace only: there is much beside them, removal markers for instance, or they
            are large.
    """
    span, limit, room = request.span, request.paging.limit, request.paging.room
    entries: list[Entry] = []
    total = 0
    for count, block in enumerate(snapshot.rows_of(list(stretches(span, after)), span.reverse, limit)):
        if request.shape.keys_only and not request.shape.keys:  # (which may be told by values)
            block = without_values(block)
        if room or pace is None:
            size = bytes_of(block)
            if room and total + size >= room:
                return (entries + block[: reaching(block, room - total)])[:limit], True
            total += size
            if pace is None and total > INLINE_BYTES:
                raise NotShortError
        entries += block
        if len(entries) < limit:
            if pace is not None:
                pace.look()
            elif count >= INLINE_BLOCKS:
                raise NotShortError
    return entries[:limit], len(entries) >= limit


def without_values(entries: Sequence[Entry]) -> list[Entry]:
    """The same with empty values: those may be large, and be held for long."""
    return [(key, b"") for key, _ in entries]
