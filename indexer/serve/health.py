"""A node's health as it sees itself: its part of the verdict that `/readyz` and its metrics show. Pure.

The whole cluster's verdict is the leading coordinator's (`GET /v1/health` there). A node is ready while it
can answer: it has read the dictionary, and the thread that owns its slices goes on. Slices that do not serve
and a leader that is silent make it degraded: what it has is still answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from indexer.hosting.node import ServingNode
from keytide.model.health import Reason, Verdict, verdict


def of(node: ServingNode, now: float, limit_s: float, others: Iterable[Reason] = ()) -> Verdict:
    """The verdict at one moment.

    Args:
        now: seconds, by the clock that `ServingNode.passed` is told.
        limit_s: longer silence is told.
        others: what else is to be told.
    """
    return verdict([*_reasons(node, now, limit_s), *others])


def _reasons(node: ServingNode, now: float, limit_s: float) -> Iterator[Reason]:
    subject = f"node {node.node_id}"
    if node.catalog().cluster is None:
        yield Reason(
            "node",
            subject,
            "failing",
            "it has not read yet which cluster it belongs to",
            "wait; if it stays so, see whether Kafka and a coordinator run",
        )
        return
    if now - node.passed_at > limit_s:
        yield Reason(
            "node",
            subject,
            "failing",
            f"the thread that follows its slices stands still for {now - node.passed_at:,.1f} s",
            "see its log and its disk; end the process when it does not go on, and it is started again",
        )
    elif now - node.leader_at > limit_s:
        yield Reason(
            "cluster",
            "the leading coordinator",
            "degraded",
            f"nothing was heard of it for {now - node.leader_at:,.1f} s: snapshots grow old",
            "see whether a coordinator leads, and whether Kafka answers",
        )
    names = node.catalog().shown_names()
    for (index, number), trouble in sorted(node.troubles().items()):
        yield Reason(
            "slice",
            f"slice {number} of {names.get(index, index)}",
            "degraded",
            f"it is {trouble.state}: {trouble.reason}",
            "wait: a rebuild begins by itself"
            if trouble.state == "LOST"
            else "mend what the reason says; it tries again every 30 s",
        )
