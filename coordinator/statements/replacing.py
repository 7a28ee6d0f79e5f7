"""CREATE OR REPLACE INDEX, and ALTER INDEX with other slices: whether it can be done, what follows. Pure.

All make a new layout (`coordinator.layouts`): an index of its own with the same name, which is built while
the old one answers, and takes over the name when it is READY. What a statement does not say of slices and
replicas stays as it is, so that one that is run again changes nothing. Which slices ALTER INDEX asks for:
`coordinator.statements.partitions`.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from coordinator.builds.builds import Builds
from coordinator.catalog.registry import ConflictError
from coordinator.core.instructions import Instruction, Note
from coordinator.core.source_status import SourceStatus
from coordinator.layouts.dropping import drop
from coordinator.sources.layout_sources import forgotten
from coordinator.sources.table_origins import origin_of
from coordinator.statements.altering import altered, named, set_auto_split, set_layout, set_replicas
from coordinator.statements.partitions import repartitioned
from keytide.catalog.auto_split import AutoSplit
from keytide.catalog.records import BuildRecord, IndexRecord
from keytide.definition.expression import identity
from keytide.definition.index import MAX_SLICES, IndexDefinition, slices_of
from keytide.definition.statement import Alteration, AlterIndex
from keytide.errors import CallerError
from keytide.model.protocol import LAYOUTS

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
    name, kept = old.name, old.definition
    if pending := _on_its_way(builds, name, definition):
        return pending
    layout = replace(definition, replicas=kept.replicas, auto_split=kept.auto_split)
    hears_less = builds.registry.dictionary.hears_by_id(kept) and not old.hears_by_id
    if old.state == "READY" and same(layout, kept) and not hears_less:
        changed = definition.replicas != kept.replicas or definition.splits_itself != kept.splits_itself
        if not changed and (found := _made_itself(builds, name)):
            return f"index {name} has this definition, and {found}; nothing is done", old, None, []
        check_no_layout(builds, old)
        if changed:
            replicas, auto_split = definition.replicas, definition.splits_itself
            wanted = AlterIndex(
                name,
                None if replicas == kept.replicas else replicas,
                auto_split=None if auto_split == kept.splits_itself else auto_split,
            )
            return alter(builds, wanted, None, now)
        gone = drop_failed(builds, name, now)
        return f"index {name} has this definition already, nothing is done", old, None, gone
    return new_layout(builds, old, definition, source, now)


def alter(builds: Builds, statement: Alteration, source: SourceStatus | None, now: int) -> Replaced:
    """ALTER INDEX name SET, PARTITION BY, SPLIT PARTITION and MERGE PARTITIONS.

    Raises:
        NoSuchIndexError, ConflictError, CallerError: as `repartitioned`, `set_replicas`, `set_layout` and
            `new_layout`.
    """
    old = named(builds.registry.dictionary, statement.name)
    wanted = repartitioned(old, statement)
    options = statement if isinstance(statement, AlterIndex) else AlterIndex(statement.name)
    if _slices(wanted) == _slices(old.definition):
        return _in_place(builds, old, options, asked=statement.asks_for_layout)
    members: dict[str, Any] = {}
    if options.replicas is not None:
        members["replicas"] = options.replicas
    if options.auto_split is not None:
        members["auto_split"] = True if options.auto_split else UNSET
    wanted = replace(wanted, **members)
    if old.state not in ("READY", "FAILED"):
        check_no_layout(builds, old)
        text, index, out = set_layout(builds, old, wanted)
        return text, index, None, out
    wanted = altered(wanted, defer_build=False)
    return _on_its_way(builds, old.name, wanted) or new_layout(builds, old, wanted, source, now)


def _slices(definition: IndexDefinition) -> tuple[object, ...]:
    """How entries fall to its slices, as equal values. (Literals are not: 1 is TRUE to Python, and 1 and 1.0
    are one value where slices part.)"""
    by = (definition.partition_kind, identity(definition.partition))
    return *by, definition.encoded_splits, definition.slices_by_partition


def _in_place(builds: Builds, old: IndexRecord, options: AlterIndex, *, asked: bool) -> Replaced:
    """Other copies, or that it gets more slices by itself; its slices stay as they are.

    Args:
        asked: the statement says slices, and they are as it says.
    """
    texts, out = list[str](), list[Instruction]()
    index = old
    if asked or options.replicas is not None:
        check_no_layout(builds, old)
    if options.replicas is not None:
        text, index, notes = set_replicas(builds, index, options.replicas)
        texts, out = [*texts, text], [*out, *notes]
    if options.auto_split is not None:
        text, index, notes = set_auto_split(builds.registry.dictionary, index, options.auto_split)
        texts, out = [*texts, text], [*out, *notes]
    return "; ".join(texts) or f"index {old.name} has these slices already, nothing is done", index, None, out


def like_before(definition: IndexDefinition, said: frozenset[str], old: IndexRecord) -> IndexDefinition:
    """The definition of CREATE OR REPLACE, where it does not speak of slices, replicas and auto_split as they
    are. Splits that the index has got by itself stay, too: the statement did not say them the first time.

    Args:
        said: what the statement says (`keytide.definition.clauses.create`).

    Raises:
        CallerError: it says of how many slices partitions are, and those that there are would make too many.
    """
    kept, members = old.definition, dict[str, Any]()
    if "partitions" not in said:
        members |= _partitions_before(definition, "subpartition" in said, old)
    if "replicas" not in said:
        members["replicas"] = kept.replicas
    if "auto_split" not in said:
        members["auto_split"] = kept.auto_split
    members = {name: value for name, value in members.items() if getattr(definition, name) != value}
    return altered(definition, **members) if members else definition


def _partitions_before(definition: IndexDefinition, spread_said: bool, old: IndexRecord) -> dict[str, Any]:
    """What a definition that does not say how many partitions there are has of the index's, as members."""
    kept = old.definition
    alike = _slices(definition)[:2] == _slices(kept)[:2]
    keeps = alike and not spread_said and not definition.unique
    if spread_said:
        spread = definition.spread[:1] * kept.partitions or (1,) * kept.partitions
    elif keeps:
        spread = kept.slices_by_partition
    else:
        spread = (1,) * (kept.partitions if alike else kept.slices)
    if sum(spread) > MAX_SLICES:
        most = MAX_SLICES // max(spread)
        raise CallerError(
            f"index {old.name} has {len(spread)} partitions, and would have {sum(spread):,} slices with "
            f"{max(spread)} of each: {MAX_SLICES:,} is the most",
            status=422,
            problem_type="index-not-alterable",
            next_step=f"say how many partitions there are to be, WITH (partitions={most}) at most, or fewer "
            "SLICES of each",
        )
    # Splits that the statement did not say the first time: the index got them by itself, or a partition that
    # was spread since has them, and is another one without.
    itself = isinstance(old.auto_split, AutoSplit) and old.auto_split.layout == old.id
    splits = kept.given_splits if alike and (itself or (keeps and kept.spread)) else ()
    return {**slices_of(spread), "given_splits": splits}


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
        UpgradeNeededError: somebody does not know of layouts.
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
    dictionary.use_protocol_of(definition)  # (before anything is dropped)
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
    if serves:
        dictionary.use_protocol(LAYOUTS, f"a new layout of index {name}")
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


def _on_its_way(builds: Builds, name: str, definition: IndexDefinition) -> Replaced | None:
    """What is answered to who asks for a layout that is on its way already."""
    for new in builds.registry.dictionary.catalog.pending_layouts(name):
        if new.state != "FAILED" and same(definition, new.definition):
            text = f"index {name} is made anew so already, by build {new.build}"
            return text, new, builds.registry.find(new.build or ""), []
    return None


def _made_itself(builds: Builds, name: str) -> str:
    """In words, that an index is getting more slices by itself; "" when it is not."""
    for new in builds.registry.dictionary.catalog.pending_layouts(name):
        if (
            new.state != "FAILED"
            and isinstance(new.auto_split, AutoSplit)
            and new.auto_split.layout == new.id
        ):
            return f"gets {new.slices} slices by itself, by build {new.build}"
    return ""


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
