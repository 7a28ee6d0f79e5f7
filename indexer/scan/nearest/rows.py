"""A scan of the nearest: rows of a spatial index by how far away they are, in one answer."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from indexer.scan.gather.reads import Reads, WrittenAnswer
from indexer.scan.gather.scatter import Target
from indexer.scan.gather.service import first_lease_ms, page_bounds
from indexer.scan.gather.story import explain
from indexer.scan.local.once import NotShortError
from indexer.scan.nearest.found import Nearest
from indexer.scan.nearest.here import nearest_here
from indexer.scan.nearest.search import nearest
from indexer.scan.peer.messages import TIP
from indexer.scan.plan.errors import UnknownIndexError
from indexer.scan.plan.spatial import is_point, nearest_of
from indexer.scan.plan.waiting import Gone
from indexer.scan.request.request import Near, ScanRequest
from indexer.scan.shape.rows import RowMaker, encode


async def scan_nearest(
    shared: Reads, name: str, request: ScanRequest, near: Near, gone: Gone, *, soon: bool = False
) -> WrittenAnswer:
    """The answer of `POST /v1/indexes/{name}/scan` whose `near` has a limit.

    Args:
        soon: if it is soon done; else it was asked so before, in vain.

    Raises:
        NotShortError: it is not.
        KeytideError, ReaderGoneError: as `ScanService.scan`.
    """
    index = await shared.ready_index(name, request, gone)
    seen = shared.session(request)
    wanted, _ = page_bounds(near.limit, 0, shared.settings)
    selection = await shared.selected(request, index, nearest=True)
    record = shared.view.catalog().index(index.id)
    if record is None:
        raise UnknownIndexError(f"there is no index {name!r} any more")
    key, srid = record.definition.keys[0].expression, index.shape.srid
    at_once = is_point(near.point)
    to = (
        nearest_of(near, key, srid)
        if at_once
        else await shared.local.threads.prepare(nearest_of, near, key, srid)
    )
    maker = RowMaker(index.shape, request.columns)

    reach = math.inf if near.metres is None else near.metres

    async def work(target: Target) -> Nearest:
        if not soon:
            return await nearest(target, shared, to, wanted, reach, tried=True)
        found = nearest_here(target, shared, to, wanted, reach, ties=False)
        if found is None:
            raise NotShortError
        return found

    agreed = await shared.read(index, selection, request, seen, gone, work, first_lease_ms(shared))
    seen = shared.seen_too(seen, index, agreed.stamp)
    found = agreed.gathered.entries

    def rows() -> list[dict[str, Any]]:
        made = maker.rows([entry for _, entry in found])
        for row, (distance, _) in zip(made, found, strict=True):
            row["distance"] = distance
        return made

    written = await shared.encoded(len(found), rows)
    answer = {"rows": msgspec.Raw(written), **shared.head(agreed.stamp, seen), "page": None}
    if request.explain:
        explained = explain(agreed, index.shape.slices)
        answer["explain"] = {**explained, "searches": agreed.gathered.searches}
    consistency = "tip" if agreed.stamp.number == TIP else "stable"
    return WrittenAnswer(encode(answer), len(found), index.name, consistency)
