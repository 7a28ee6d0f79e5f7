"""A scan of the nearest: rows of a spatial index by how far away they are, in one answer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from indexer.scan.aggregate.columns import EntryReader
from indexer.scan.gather.reads import Reads, WrittenAnswer
from indexer.scan.gather.scatter import Target
from indexer.scan.gather.service import first_lease_ms, page_bounds
from indexer.scan.gather.story import explain
from indexer.scan.local.tasks import Pace
from indexer.scan.nearest.search import Nearest, Placed, nearest
from indexer.scan.peer.messages import TIP, Entry
from indexer.scan.plan.errors import UnknownIndexError
from indexer.scan.plan.spatial import nearest_of
from indexer.scan.plan.waiting import Gone
from indexer.scan.request.request import Near, ScanRequest
from indexer.scan.shape.rows import RowMaker, encode
from keytide.collation import encode_part
from keytide.definition.binding import Binding
from keytide.definition.expression import DistanceTo
from keytide.definition.index import IndexDefinition


class MeasuredRows:
    """Makes the rows of a scan, each with its distance from a place.

    Args:
        rows: makes them without.
    """

    def __init__(self, definition: IndexDefinition, to: DistanceTo, rows: RowMaker) -> None:
        binding = Binding(definition)
        self._distance = binding.value(to)
        self._reader = EntryReader(definition, binding.needs(to))
        self._rows = rows

    def placed(self, entries: Sequence[Entry], pace: Pace) -> list[Placed]:
        """The rows with what they are ordered by: the distance."""
        made: list[Placed] = []
        for part in pace.parts(entries):
            read = self._reader.read([key for key, _ in part], [value for _, value in part])
            for one, entry, row in zip(read, part, self._rows.rows(part), strict=True):
                distance = self._distance(*one)
                row["distance"] = distance
                made.append((encode_part(distance), entry[0], row))
        return made


async def scan_nearest(
    shared: Reads, name: str, request: ScanRequest, near: Near, gone: Gone
) -> WrittenAnswer:
    """The answer of `POST /v1/indexes/{name}/scan` whose `near` has a limit. Raises as `ScanService.scan`."""
    index = await shared.ready_index(name, request, gone)
    seen = shared.session(request)
    wanted, _ = page_bounds(near.limit, 0, shared.settings)
    selection = shared.selection(request, index, nearest=True)
    record = shared.view.catalog().index(index.id)
    if record is None:
        raise UnknownIndexError(f"there is no index {name!r} any more")
    to = nearest_of(near, record.definition.keys[0].expression, index.shape.srid)
    maker = MeasuredRows(record.definition, to, RowMaker(index.shape, request.columns))

    async def work(target: Target) -> Nearest:
        return await nearest(target, shared, to, wanted, maker.placed)

    agreed = await shared.read(index, selection, request, seen, gone, work, first_lease_ms(shared))
    seen = shared.seen_too(seen, index, agreed.stamp)
    rows = [row for _, _, row in agreed.gathered.placed]
    written = await shared.local.threads.run(encode, rows)
    answer = {"rows": msgspec.Raw(written), **shared.head(agreed.stamp, seen), "page": None}
    if request.explain:
        explained = explain(agreed, index.shape.slices)
        answer["explain"] = {**explained, "searches": agreed.gathered.searches}
    consistency = "tip" if agreed.stamp.number == TIP else "stable"
    return WrittenAnswer(encode(answer), len(rows), index.name, consistency)
