"""The versions of the protocol: what processes of neighbouring releases must know of one another. Pure.

Messages and records only grow: what a reader does not know it leaves out. Where that would be wrong, because
who leaves it out does something else than the others, a new version begins here (R52). Every node, projector
and driver says in its reports up to which version it speaks; the coordinator has the cluster use a version
when all of them do, and something is asked for that needs it (`coordinator.core.speakers`). What is in use
stands in the dictionary (`ClusterRecord.protocol`) and is never lowered: what was written under it is still
there.

| version | what it brought |
| --- | --- |
| 1 | everything before versions were told |
| 2 | new layouts of an index (R44, R45): several index records have one name, and which of them bears it is \
said by `replaces`, `took_over` and `replaced_by`. Copies that move (R42): `CopyRecord.why` is `moved`, \
`rebalance` records, and copies that leave are named in `IndexRecord.leaving` |
| 3 | heartbeats of nodes that say only what has changed (R53). Nobody needs to have it in use: a node sends \
them while the leader says that it speaks 3 (`TermRecord.protocol`) |
| 4 | indexes of another structure than btree (`IndexDefinition.structure_name`, `keytide.structure`), and \
with partitions of several slices (`IndexDefinition.partition_slices`) |
| 5 | indexes USING spatial, whose documents may have several entries, of which one is read \
(`keytide.structure.spatial`); conditions on places in WHERE, and POINT |
| 6 | segments that leave documents out which their slice cannot hold (`Segment.present`, \
`IndexRecord.hears_by_id`), of indexes that are made while it is in use: in a new cluster, or from \
`keytide upgrade` on |

A gateway reports nothing, so nobody counts it; neither is a coordinator counted that stands by. A process
that reads of a version which it does not speak ends (`UnknownVersionError`), from version 2 on; those of
version 1 know nothing of versions, so the leader passes over the nodes among them.
"""

from __future__ import annotations

from typing import Final

from keytide.errors import CallerError

FIRST_PROTOCOL: Final = 1
"""Spoken by a release that does not say."""
LAYOUTS: Final = 2
"""From which on an index has new layouts."""
MOVES: Final = 2
"""From which on copies move."""
OTHER_STRUCTURES: Final = 4
"""From which on an index may be USING something else than btree."""
SUBPARTITIONS: Final = 4
"""From which on a partition may be of several slices."""
PLACES: Final = 5
"""From which on an index may be USING spatial, and a definition speak of places."""
NARROWED: Final = 6
"""From which on a slice need not hear every document."""
NEEDED: Final = max(LAYOUTS, MOVES, OTHER_STRUCTURES, SUBPARTITIONS, PLACES, NARROWED)
"""The latest that something needs which can be asked for: while somebody speaks less, that is refused."""
CHANGES: Final = 3
"""From which on a leader understands `HeartbeatChanges`."""
SPOKEN: Final = 6
"""Up to which this release speaks."""


class UnknownVersionError(CallerError):
    """The cluster uses a later version of the protocol than this process speaks: it would misread what the
    others say and write."""

    problem_type = "unknown-protocol-version"
    status = 503


def check_spoken(version: int) -> None:
    """See that this release speaks a version that a cluster uses.

    Raises:
        UnknownVersionError: it does not.
    """
    if version > SPOKEN:
        raise UnknownVersionError(
            f"the cluster uses version {version} of the protocol, and this process speaks version {SPOKEN}",
            next_step="upgrade it to the release of the others",
        )
