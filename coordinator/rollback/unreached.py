"""Indexes that were READY, and are not at the snapshot that a rollback goes back to. Pure (R25).

A build reads a compacted source while its cleaner works: of a document that was written again, the older
version may be gone before it is read. So what a build leaves is a state of the source only from its final
timestamp on, with the newer version; that is why READY waits for it. A rollback to an earlier timestamp takes
the newer version back, and nobody has the older one: the document would be missing, for ever if the newer one
is lost. Slices cannot see that (what they hold is below the cut), so their index begins again as a whole.
"""

from __future__ import annotations

from coordinator.builds.builds import Builds
from coordinator.builds.retirement import retire
from coordinator.core.instructions import Instruction, Note
from coordinator.sources.table_origins import origin_of
from keytide.catalog.catalog import Catalog
from keytide.catalog.history import History
from keytide.catalog.records import IndexRecord, RollbackRecord


def begin_unreached(builds: Builds, rollback: RollbackRecord, now: int) -> list[Instruction]:
    """Queue READY indexes anew whose builds were over only past the timestamp of a rollback, which is in the
    dictionary already."""
    dictionary = builds.registry.dictionary
    catalog = dictionary.catalog
    history = History.of(catalog, rollback.keyspace)
    found = [
        index
        for index in catalog.indexes(rollback.keyspace)
        if index.state == "READY" and _unreached(index, catalog, history, rollback)
    ]
    origins = {index.id: origin_of(catalog, index) for index in found}
    out: list[Instruction] = []
    for index in found:
        out += builds.leave_rebuilds(index, f"index {index.name} is built again, after a rollback", now)
        out += retire(dictionary, index, "DEFERRED")
        text = (
            f"index {index.name} is built again: the source was rolled back to before the end of its build "
            f"(snapshot {rollback.number})"
        )
        out.append(Note("warning", "index-begins-again", index.name, text))
    again = [record for index in found if (record := catalog.index(index.id)) is not None]
    if plain := [index for index in again if origins[index.id] is None]:
        builds.request(plain, 0, now)
    for index in again:
        if (origin := origins[index.id]) is not None:  # what only the table has is not in the log
            builds.request([index], 0, now, origin=origin)
    return out


def _unreached(index: IndexRecord, catalog: Catalog, history: History, rollback: RollbackRecord) -> bool:
    """Whether what some slice's build left is no state of the source at the rollback's timestamp. Slices of
    which nothing holds begin from nothing, and read everything."""
    for name in {index.build or "", *index.slice_builds.values()}:
        build = catalog.build(name)
        if build is None or build.final_timestamp is None or history.begins_anew(build.incarnation):
            continue
        if not rollback.timestamp.covers(build.final_timestamp):
            return True
    return False
