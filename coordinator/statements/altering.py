"""ALTER INDEX name SET (replicas=N): whether it can be done, and what follows. Pure.

Theory of operation. The definition says how many copies of each slice there are to be; the statement writes
it anew. Are there fewer of a slice, the leader has more filled from those that there are, at its next look.
Are there more, they are taken out of the placement by the same write: those that are being filled first, then
those that do not serve, then the last that the placement names. None of a slice is taken out unless one that
stays serves: else the statement is refused, and nothing is changed.

An index that is built keeps the placement that its build began with, so it cannot be altered before it is
READY. One that waits, for its build or for its turn, is placed as its definition says when the build begins.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from coordinator.builds.builds import Builds
from coordinator.catalog.placement import shortage
from coordinator.catalog.registry import ConflictError
from coordinator.core.instructions import Instruction, Note
from keytide.catalog.records import CopyRecord, IndexRecord
from keytide.definition.normal import normal_statement


def set_replicas(builds: Builds, name: str, replicas: int) -> tuple[str, IndexRecord, list[Instruction]]:
    """Have an index get, or keep, so many copies of each slice beside the first.

    Returns:
        What was done, in words; the index as it is now; what is to be told.

    Raises:
        NoSuchIndexError: there is none of that name.
        ConflictError: it is built now, has failed, or is being dropped; or copies are too many of a slice of
            which none that stays serves.
    """
    dictionary = builds.registry.dictionary
    if dictionary.catalog.index_by_name(name) is None:
        for index in dictionary.catalog.indexes():
            if index.name == name and index.state == "DROPPING":
                raise _conflict(f"index {name} is being dropped", "make it anew when it is gone")
    index = dictionary.index_named(name)
    _check_state(builds, index)
    if index.definition.replicas == replicas:
        return f"index {name} has replicas={replicas} already, nothing is done", index, []
    placement, copies = index.placement, index.copies
    dropped: list[CopyRecord] = []
    if index.state == "READY":
        if index.keyspace in builds.registry.halted:
            why = f"the history of {index.keyspace} is being examined"
            raise _conflict(why, "try again in a moment; `keytide status` shows when it is over")
        placement = [_kept(builds, index, number, replicas + 1) for number in range(index.slices)]
        copies = {
            number: mine
            for number, of_slice in index.copies.items()
            if (mine := {node: id_ for node, id_ in of_slice.items() if node in placement[number]})
        }
        dropped = list(_too_many(dictionary.catalog.copies(), index.id, placement, replicas + 1))
    definition = replace(index.definition, replicas=replicas)
    definition = replace(definition, statement=normal_statement(definition))
    gone = sum(map(len, index.placement)) - sum(map(len, placement))
    index = replace(index, definition=definition, placement=placement, copies=copies)
    dictionary.put(index)
    for record in dropped:
        dictionary.delete(f"copy/{record.id}")
    text = (
        f"index {name} is to have {_copies(replicas + 1)} of each slice: {_what_follows(builds, index, gone)}"
    )
    return text, index, [Note("info", "index-altered", name, text)]


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


def _kept(builds: Builds, index: IndexRecord, number: int, most: int) -> list[str]:
    """The nodes whose copies of a slice stay, at most so many, in the order of the placement.

    Raises:
        ConflictError: copies would go, and none that stays serves.
    """
    nodes, incarnation = index.placement[number], builds.registry.incarnation(index.keyspace)
    if len(nodes) <= most:
        return nodes
    serving = [one for one in nodes if builds.nodes.slice_serves(one, index.id, number, incarnation)]
    if not serving:
        raise _conflict(
            f"no copy of slice {number} of {index.name} serves now, so none of them is given up: they are on "
            + ", ".join(nodes),
            f"see what is said of them (`keytide index show {index.name}`), and try again when one is LIVE",
        )
    stay = sorted(nodes, key=lambda one: one not in serving)[:most]
    return [one for one in nodes if one in stay]


def _too_many(
    records: list[CopyRecord], index: str, placement: list[list[str]], most: int
) -> Iterator[CopyRecord]:
    """Copies of an index that are being filled and are not wanted any more, the oldest of a slice stay."""
    mine = sorted((one for one in records if one.index == index), key=lambda one: (len(one.id), one.id))
    counted = [len(nodes) for nodes in placement]
    for record in mine:
        counted[record.slice] += 1
        if counted[record.slice] > most:
            yield record


def _what_follows(builds: Builds, index: IndexRecord, gone: int) -> str:
    if index.state != "READY":
        return "its next build makes them"
    wanted, words = index.definition.replicas + 1, list[str]()
    if gone:
        words.append(f"{_copies(gone)} {'was' if gone == 1 else 'were'} taken out")
    if missing := sum(max(0, wanted - len(nodes)) for nodes in index.placement):
        live = len(builds.nodes.live())
        words.append(f"{_copies(missing)} {'is' if missing == 1 else 'are'} filled from those that there are")
        if live < wanted:
            words.append(f"{shortage(live, wanted)}: the rest waits")
    return "; ".join(words or ["so many there are"])


def _copies(count: int) -> str:
    return f"{count} cop{'y' if count == 1 else 'ies'}"


def _conflict(reason: str, step: str) -> ConflictError:
    return ConflictError(reason, problem_type="index-not-alterable", next_step=step)
