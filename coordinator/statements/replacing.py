"""CREATE OR REPLACE INDEX, and ALTER INDEX name SET (slices=N): whether it can be done, what follows. Pure.

Both make a new layout (`coordinator.layouts`): an index of its own with the same name, which is built while
the old one answers, and takes over the name when it is READY. What a statement does not say of slices and
replicas stays as it is, so that one that is run again changes nothing.
"""

from __future__ import annotations

from typing import Any

from coordinator.builds.builds import Builds
from coordinator.catalog.registry import ConflictError
from coordinator.core.instructions import Instruction, Note
from coordinator.layouts.dropping import drop
from coordinator.statements.altering import altered, check_splits
from keytide.catalog.records import BuildRecord, IndexRecord
from keytide.definition.index import IndexDefinition
from keytide.errors import CallerError

Replaced = tuple[str, IndexRecord, BuildRecord | None, list[Instruction]]
"""What was done, in words; the index as it is now; the build that it began; what follows."""


def with_slices(builds: Builds, old: IndexRecord, slices: int, replicas: int | None, now: int) -> Replaced:
    """Have an index get so many slices (and, if that is said, copies).

    Raises:
        ConflictError: it is not READY, or a new layout of it is on its way.
        CallerError: its splits say how many slices it has.
    """
    check_splits(old, slices)
    members: dict[str, Any] = {"slices": slices, "defer_build": False}
    if replicas is not None:
        members["replicas"] = replicas
    return new_layout(builds, old, altered(old.definition, **members), now)


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


def new_layout(builds: Builds, old: IndexRecord, definition: IndexDefinition, now: int) -> Replaced:
    """Begin to replace an index by another one of its name.

    Raises:
        ConflictError: it is of another keyspace; the old one is not READY; a new layout is on its way.
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
    out: list[Instruction] = []
    before = dictionary.catalog.replacement(old)
    gone = [one for one in (before, None if old.state == "READY" else old) if one is not None]
    for index in gone:
        dropped, _ = drop(builds, index, now)
        out += dropped
    index = IndexRecord(
        id=f"{name}-{dictionary.number()}",
        definition=definition,
        state="DEFERRED",
        version=0,
        placement=[],
        build=None,
        created_at=now,
        replaces=old.id if old.state == "READY" else "",
    )
    dictionary.put(index)
    build = builds.request([index], 0, now)
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
    new = builds.registry.dictionary.catalog.replacement(index)
    if new is not None and new.state != "FAILED":
        raise _conflict(
            f"a new layout of index {index.name} is on its way, by build {new.build}", _ways(new.build or "")
        )


def _ways(build: str) -> str:
    return f"wait for it (`keytide build wait {build}`), or cancel it (`keytide build cancel {build}`)"


def _conflict(reason: str, step: str) -> ConflictError:
    return ConflictError(reason, problem_type="index-not-alterable", next_step=step)
