"""The nodes that what goes on waits for: they hold slices of it, and are not heard. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.core.nodes import node_subject
from coordinator.leader import Leader


def waits_for(leader: Leader, words: str, nodes: Iterable[str]) -> str:
    """What a build or a job waits for.

    Args:
        words: in its own words, "" when it knows of nothing.
        nodes: whose slices it needs now.
    """
    return "; ".join(filter(None, (words, *(_word(leader, name) for name in sorted(set(nodes))))))


def _word(leader: Leader, name: str) -> str:
    """Of a node that is not live; "" of one that is."""
    heard = leader.stability.nodes.by_id.get(name)
    if heard is not None and heard.live:
        return ""
    silence = leader.stability.failure_detector.silence(node_subject(name))
    since = f"has said nothing for {silence / 1000:,.0f} s" if heard is not None else "was not heard yet"
    return f"node {name}, which {since} (keytide node list)"
