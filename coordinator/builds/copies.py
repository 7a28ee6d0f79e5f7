"""Which copies of its slices a build waits for, once it has read everything. Pure.

Theory of operation. An index is READY when every copy of every slice holds one snapshot with all that the
build was to bring: so it begins with as many copies as it is to have. Two kinds are not waited for while
another copy of their slice has come as far:

* one whose data is lost. The build begins again only when no copy of a slice has its data (`rebuild`);
* one whose node says nothing for `ABSENT_MS`. Until then it may come back, and only the build can fill it.

Both are made anew from the others when the index is READY, as any copy that is lost. Of a slice whose nodes
all say nothing, or have all lost it, every copy is waited for: else the index would be READY, and answer
nothing there.

Silence is the time in which other nodes were heard and this one was not: a leader that stood still holds it
against nobody.
"""

from __future__ import annotations

from typing import Final

from coordinator.core.nodes import HeardNodes
from coordinator.stability.acknowledgements import Copy
from coordinator.stability.publishing import usable_copies
from keytide.catalog.records import IndexRecord

ABSENT_MS: Final = 60_000


def away(nodes: HeardNodes, index: IndexRecord, since: int) -> tuple[list[Copy], list[Copy]]:
    """The copies of an index on nodes that are not live: those that are waited for, and those that are not
    any more.

    Args:
        nodes: what indexer nodes say.
        since: when the wait began; nodes that were not heard in this term are silent from then on.
    """
    live = set(nodes.live())
    heard = {name: node.heard_at for name, node in nodes.by_id.items()}
    newest = max(heard.values(), default=0)
    waited: list[Copy] = []
    given_up: list[Copy] = []
    for number, usable in enumerate(usable_copies(nodes, index)):
        alone = live.isdisjoint(usable)
        for node in index.placement[number]:
            if node not in live:
                late = newest - heard.get(node, since) >= ABSENT_MS
                (given_up if late and not alone else waited).append((number, node))
    return waited, given_up
