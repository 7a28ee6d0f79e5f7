"""CREATE OR REPLACE INDEX, and ALTER INDEX name SET (slices=N): whether it can be done, what follows. Pure.

Both make a new layout (`coordinator.layouts`): an index of its own with the same name, which is built while
the old one answers, and takes over the name when it is READY. What a statement does not say of slices and
replicas stays as it is, so that one that is run again changes nothing.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from coordinator.builds.builds import Builds
from coordinator.catalog.registry import ConflictError
from coordinator.core.instructions import Instruction, Note
from coordinator.core.source_status import SourceStatus
from coordinator.layouts.dropping import drop
from coordinator.sources.layout_sources import forgotten
from coordinator.sources.table_origins import origin_of
from coordinator.statements.altering import altered, check_splits, named, set_replicas, set_slices
from keytide.catalog.records import BuildRecord, IndexRecord
from keytide.definition.index import IndexDefinition
from keytide.errors import CallerError

Replaced = tuple[str, IndexRecord, BuildRecord | None, list[Instruction]]
"""What was done, in words; the index as it is now; the build that it began; what follows."""


def replace_index(
    builds: Builds, old: IndexRecord, definition: IndexDefinition, source: SourceStatus | None, now: int
) -> Replaced:
    """CREATE OR REPLACE INDEX of one that there is. What it asks for may be there, or on its way, already;
    where it is there, a layout that has failed meanwhile is given up.

    Raises:
        ConflictError, CallerError: as `new_layout`.
    """
    name, replicas = old.name, old.definition.replicas
    for new in builds.registry.dictionary.catalog.pending_layouts(name):
        if new.state != "FAILED" and same(definition, new.definition):
            text = f"index {name} is made anew so already, by build {new.build}"
            return text, new, builds.registry.find(new.build or ""), []
    if old.state == "READY" and same(replace(definition, replicas=replicas), old.definition):
        check_no_layout(builds, old)
        if definition.replicas != replicas:
            return alter(builds, name, definition.replicas, None, None, now)
        gone = drop_failed(builds, name, now)
        return f"index {name} has this definition already, nothing is done", old, None, gone
    return new_layout(builds, old, definition, source, now)


def alter(
    builds: Builds,
    name: str,
    replicas: int | None,
    slices: int | None,
    source: SourceStatus | None,
    now: int,
) -> Replaced:
    """ALTER INDEX name SET (replicas=N, slices=N).

    Raises:
        NoSuchIndexError, ConflictError, CallerError: as `set_replicas`, `set_slices` and `new_layout`.
    """
    old = named(builds.registry.dictionary, name)
    check_no_layout(builds, old)
    if slices is None or slices == old.slices:
        text, index, out = set_replicas(
            builds, old, old.definition.replicas if replicas is None else replicas
        )
        return text, index, None, out
    if old.state not in ("READY", "FAILED"):
        text, index, out = set_slices(builds, old, slices, replicas)
        return text, index, None, out
    check_splits(old, slices)
    members: dict[str, Any] = {"slices": slices, "defer_build": False}
    if replicas is not None:
        members["replicas"] = replicas
    return new_layout(builds, old, altered(old.definition, **members), source, now)


def like_before(definition: IndexDefinition, said: frozenset[str], old: IndexDefinition) -> IndexDefinition:
    """The definition of CREATE OR REPLACE, where it does not speak of slices and replicas as they are.

    Args:
        said: options that the statement gives.
    """
    members: dict[str, Any] = {}
    if "slices" not in said and definition.slices != old.slices:
        members["slices"] = old.slices
    if "replicas" not in said and definition.replicas != old.replicas:
        members["replicas"] = old.replicas
    return altered(definition, **members) if members else definition


def same(one: IndexDefinition, other: IndexDefinition) -> bool:
    """Whether two definitions make the same index, whatever their statements were written like."""
    return altered(one, defer_build=False) == altered(other, defer_build=False)


def new_layout(
    builds: Builds, old: IndexRecord, definition: IndexDefinition, source: SourceStatus | None, now: int
) -> Replaced:
    """Begin to replace an index by another one of its name, which begins with the same table if that did.

    Args:
        source: of its keyspace, looked up just now; None where that was not possible (when the new layout is
            built it is looked at again).

    Raises:
        ConflictError: it is of another keyspace; the old one is built; a new layout is on its way; the source
            no longer holds what the old one was built from.
        CallerError: its build is not to begin.
    """
    dictionary, name = builds.registry.dictionary, old.name
    if definition.defer_build:
        raise CallerError(
            f"index {name} is replaced when the new one is built, so its build cannot be deferred",
            status=422,
            next_step="leave defer_build out",
        )
    if definition.keyspace != old.keyspace:
        raise _conflict(
            f"index {name} is on {old.keyspace}, and cannot be replaced by one on {definition.keyspace}",
            f"choose another name, or DROP INDEX {name} first",
        )
    active = builds.registry.active(old)
    if active is not None:
        raise _conflict(f"index {name} is in build {active.id}, {active.state}", _ways(active.id))
    check_no_layout(builds, old)
    serves = old.state == "READY"
    if (
        serves
        and source is not None
        and not builds.seeds(definition, old.definition)
        and (why := forgotten(dictionary.catalog, old, source.earliest, source.topic_id))
    ):
        raise _conflict(why, f"if what the source holds is enough, DROP INDEX {name} and CREATE it")
    out = drop_failed(builds, name, now)
    if not serves:
        out += drop(builds, old, now)[0]
    index = dictionary.define(definition, now, replaces=old.id if serves else "")
    build = builds.request([index], 0, now, origin=origin_of(dictionary.catalog, old))
    text = f"index {name} is made anew by build {build.id}"
    if index.replaces:
        text += "; until that is READY the old one answers"
    index = dictionary.catalog.index(index.id) or index
    return text, index, build, [*out, Note("info", "layout-begun", name, text)]


def check_no_layout(builds: Builds, index: IndexRecord) -> None:
    """See that no new layout of an index is on its way.

    Raises:
        ConflictError: one is.
    """
    for new in builds.registry.dictionary.catalog.pending_layouts(index.name):
        if new.state != "FAILED":
            raise _conflict(
                f"a new layout of index {index.name} is on its way, by build {new.build}",
                _ways(new.build or ""),
            )


def drop_failed(builds: Builds, name: str, now: int) -> list[Instruction]:
    """Drop the new layouts of an index that have failed: nobody is to look at them any more."""
    out: list[Instruction] = []
    for new in builds.registry.dictionary.catalog.pending_layouts(name):
        if new.state == "FAILED":
            out += drop(builds, new, now)[0]
    return out


def _ways(build: str) -> str:
    return f"wait for it (`keytide build wait {build}`), or cancel it (`keytide build cancel {build}`)"


def _conflict(reason: str, step: str) -> ConflictError:
    return ConflictError(reason, problem_type="index-not-alterable", next_step=step)
