"""ALTER INDEX name SET (replicas=N, auto_split=...), RENAME TO, and other slices of an index that is not
built: whether it can be done, and what follows. Pure.

Theory of operation. The definition says how many copies of each slice there are to be; the statement writes
it anew, and the leader does the rest at its next look (`coordinator.copies`): are there fewer of a slice, it
has more filled from those that there are; are there more, those that are being filled are given up first, and
then some leave, as soon as another one holds what they have.

An index that is built keeps the placement that its build began with, so it cannot be altered before it is
READY. One that waits, for its build or for its turn, is placed as its definition says when the build begins.

A name is what people say; queues, copies, builds and tokens go by the index's id, which stays. So an index
that is renamed goes on with whatever it does.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from coordinator.builds.builds import Builds
from coordinator.catalog.dictionary import Dictionary
from coordinator.catalog.placement import shortage
from coordinator.catalog.registry import ConflictError
from coordinator.core.instructions import Instruction, Note
from coordinator.statements.names import check_name, taken
from keytide.catalog.records import IndexRecord
from keytide.definition.index import IndexDefinition
from keytide.definition.normal import normal_statement, render_slices
from keytide.definition.render import render_expression


def set_layout(
    builds: Builds, index: IndexRecord, definition: IndexDefinition
) -> tuple[str, IndexRecord, list[Instruction]]:
    """Have an index that is not built yet get other slices (and, if the definition has others, copies).

    Returns:
        As `set_replicas`.

    Raises:
        ConflictError: it is built now.
    """
    _check_state(builds, index)
    dictionary = builds.registry.dictionary
    dictionary.use_protocol_of(definition)
    hears = dictionary.hears_by_id(definition)
    index = replace(index, definition=altered(definition), hears_by_id=hears, splits=())
    dictionary.put(index)
    how = f"{definition.partition_kind.upper()}({render_expression(definition.partition)})"
    how += f", parted {_where(definition)}" if definition.partition_kind == "range" else ""
    if definition.spread:
        how += (
            f", {len(definition.spread)} partitions of {render_slices(definition.spread)} slices by HASH(id)"
        )
    text = f"index {index.name} is to have {definition.slices} slices by {how}: its next build makes them"
    return text, index, [Note("info", "index-altered", index.name, text)]


def set_auto_split(
    dictionary: Dictionary, index: IndexRecord, on: bool
) -> tuple[str, IndexRecord, list[Instruction]]:
    """Have an index get more slices by itself, or no longer, whatever it does; so with all its layouts.

    Returns:
        As `set_replicas`.
    """
    name = index.name
    if index.definition.splits_itself == on:
        return f"index {name} has auto_split={str(on).lower()} already, nothing is done", index, []
    for one in dictionary.catalog.layouts(name):
        definition = altered(one.definition, auto_split=True if on else UNSET)
        # (Who says it anew wants it tried anew: what came of the last time is forgotten.)
        dictionary.put(replace(one, definition=definition, auto_split=UNSET if on else one.auto_split))
    index = dictionary.catalog.index(index.id) or index
    text = f"index {name} gets more slices by itself from now on, where one is hot"
    if not on:
        text = f"index {name} gets no more slices by itself from now on"
    return text, index, [Note("info", "index-altered", name, text)]


def set_replicas(
    builds: Builds, index: IndexRecord, replicas: int
) -> tuple[str, IndexRecord, list[Instruction]]:
    """Have an index get, or keep, so many copies of each slice beside the first.

    Returns:
        What was done, in words; the index as it is now; what is to be told.

    Raises:
        ConflictError: it is built now, or has failed.
    """
    dictionary, name = builds.registry.dictionary, index.name
    _check_state(builds, index)
    if index.definition.replicas == replicas:
        return f"index {name} has replicas={replicas} already, nothing is done", index, []
    definition = replace(index.definition, replicas=replicas)
    definition = replace(definition, statement=normal_statement(definition))
    index = replace(index, definition=definition)
    dictionary.put(index)
    text = f"index {name} is to have {_copies(replicas + 1)} of each slice: {_what_follows(builds, index)}"
    return text, index, [Note("info", "index-altered", name, text)]


def rename(dictionary: Dictionary, name: str, new_name: str) -> tuple[str, IndexRecord, list[Instruction]]:
    """Give an index another name, whatever it does.

    Returns:
        As `set_replicas`.

    Raises:
        NoSuchIndexError: there is none of that name.
        ConflictError: it is being dropped, or another one has the new name.
        CallerError: queues cannot be named after it.
    """
    index = named(dictionary, name)
    if new_name == name:
        return f"index {name} has that name already, nothing is done", index, []
    other = dictionary.catalog.index_by_name(new_name)
    if other is not None:
        raise taken(other)
    check_name(dictionary.topics, new_name)
    for one in dictionary.catalog.layouts(name):
        dictionary.put(replace(one, definition=altered(one.definition, name=new_name)))
    index = dictionary.catalog.index(index.id) or index
    text = f"index {name} is {new_name} from now on"
    return text, index, [Note("info", "index-renamed", new_name, text)]


def altered(definition: IndexDefinition, **members: Any) -> IndexDefinition:
    """A definition with other members, which its statement says."""
    definition = replace(definition, **members)
    return replace(definition, statement=normal_statement(definition))


def named(dictionary: Dictionary, name: str) -> IndexRecord:
    """The index of that name.

    Raises:
        NoSuchIndexError: there is none.
        ConflictError: it is being dropped.
    """
    if dictionary.catalog.index_by_name(name) is None:
        for index in dictionary.catalog.indexes():
            if index.name == name and index.state == "DROPPING":
                raise _conflict(f"index {name} is being dropped", "make it anew when it is gone")
    return dictionary.index_named(name)


def _check_state(builds: Builds, index: IndexRecord) -> None:
    """Whether its definition may change now."""
    name, active = index.name, builds.registry.active(index)
    if index.state == "FAILED" and active is None:
        raise _conflict(
            f"index {name} is FAILED: {index.reason}",
            f"build it first (`keytide index build {name}`), and alter it when it is READY",
        )
    waits = active is None or (active.state == "QUEUED" and not builds.registry.run(active.id).preparing)
    if index.state != "READY" and not waits and active is not None:
        raise _conflict(
            f"index {name} is in build {active.id}, {active.state}: its copies are placed",
            f"alter it when it is READY (`keytide build wait {active.id}`)",
        )


def _what_follows(builds: Builds, index: IndexRecord) -> str:
    if index.state != "READY":
        return "its next build makes them"
    wanted, words = index.definition.replicas + 1, list[str]()
    if more := sum(max(0, len(nodes) - wanted) for nodes in index.placement):
        words.append(
            f"{_copies(more)} {'leaves' if more == 1 else 'leave'}, which still serve pages for a while"
        )
    if missing := sum(max(0, wanted - len(nodes)) for nodes in index.placement):
        closed = builds.registry.dictionary.catalog.closed()
        live = len(set(builds.nodes.live()) - closed)
        words.append(f"{_copies(missing)} {'is' if missing == 1 else 'are'} filled from those that there are")
        if live < wanted:
            words.append(f"{shortage(live, wanted, len(closed))}: the rest waits")
    return "; ".join(words or ["so many there are"])


def _where(definition: IndexDefinition) -> str:
    splits = ", ".join(map(render_expression, definition.given_splits))
    return f"at {splits}" if splits else "where the build finds it best"


def _copies(count: int) -> str:
    return f"{count} cop{'y' if count == 1 else 'ies'}"


def _conflict(reason: str, step: str) -> ConflictError:
    return ConflictError(reason, problem_type="index-not-alterable", next_step=step)
