"""What this node has lately seen of the others: who answers, and how fast. Pure; times are the caller's.

A copy on a node that was silent is asked last for a while, and a copy that takes longer than most of its
node's answers is *hedged*: another one is asked, too, and the first answer counts. (Dean and Barroso, "The
Tail at Scale", 2013; the budget keeps a slow cluster from being asked twice as much.) Of two copies the one
with less to do is asked (power of two choices).

Where answers take now this long and now that, hedging uses the budget up. So a node that is slow is told from
one that stands still: of that nothing at all is heard, and others are asked whatever the budget says.

A copy that is *behind* has answered that it does not hold a number yet: its node is back, and reads its
queue. It is asked after the others for a while as well, of that slice alone: what else its node has may be as
new as anybody's. One that the leader tells of, because it did not wait for it (R37), is not asked at all
while another one may answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

SUSPECT_S: Final = 1.0
LONGEST_SUSPECT_S: Final = 8.0
"""For how long a node that did not answer, or a copy that is behind, is asked last; doubled from the first to
the longest."""
REMEMBERED: Final = 64
LEAST_HEDGE_S: Final = 0.02
FIRST_HEDGE_S: Final = 0.1
"""A request is hedged after the 95th percentile of so many answers, not before the least; the first ones
after this."""
LONG_HEDGE_S: Final = 1.0
"""One whose answer takes as long as there is to do."""
BUDGET: Final = 10.0
HEDGED_SHARE: Final = 0.05
"""At most this share of requests is hedged, and so many at once."""


Slice = tuple[str, int]
"""(index id, slice)."""


@dataclass(slots=True)
class _Pause:
    """How long something is not asked first; for a copy that is behind, what it did not hold."""

    until: float = 0.0
    seconds: float = 0.0
    number: int = -1

    def again(self, now: float) -> None:
        """Asked in vain: twice as long as the last time, but for what was asked before that was known."""
        if now >= self.until:
            self.seconds = min(LONGEST_SUSPECT_S, 2 * self.seconds or SUSPECT_S)
            self.until = now + self.seconds

    def past(self, now: float) -> bool:
        """Whether it has been over for so long that the next one is the first again."""
        return now > self.until + LONGEST_SUSPECT_S

    def end(self) -> None:
        self.until = self.seconds = 0.0


@dataclass(slots=True)
class _Peer:
    """One node: requests under way, when it was heard last, seconds that the last answers took, and for how
    long it is suspected."""

    under_way: int = 0
    heard_at: float = 0.0
    took: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    suspect: _Pause = field(default_factory=_Pause)
    hedge_s: float = FIRST_HEDGE_S


def _nobody(index: str, slice_number: int) -> Collection[str]:
    return ()


class PeerHealth:
    """Of all nodes, as one of them sees it.

    Args:
        not_waited_for: (index id, slice) -> the nodes whose copies the leader does not wait for.
    """

    def __init__(self, not_waited_for: Callable[[str, int], Collection[str]] = _nobody) -> None:
        self._not_waited_for = not_waited_for
        self._peers: dict[str, _Peer] = {}
        self._budget = BUDGET
        self._behind: dict[Slice, dict[str, _Pause]] = {}

    def asked(self, node: str) -> None:
        """A request goes to a node; `ended` follows, and before it `answered` or `silent` may."""
        self._peer(node).under_way += 1
        self._budget = min(BUDGET, self._budget + HEDGED_SHARE)

    def ended(self, node: str) -> None:
        """It was answered, has failed, or is not waited for any more."""
        self._peer(node).under_way -= 1

    def heard(self, node: str, now: float) -> None:
        """It has said something, whatever that is."""
        self._peer(node).heard_at = now

    def heard_since(self, node: str, then: float) -> bool:
        """Whether it has said anything since a moment."""
        return self._peer(node).heard_at > then

    def answered(self, node: str, took_s: float) -> None:
        """A short request was answered."""
        peer = self._peer(node)
        peer.suspect.end()
        peer.took.append(took_s)
        if len(peer.took) == 1 or len(peer.took) % 8 == 0 or took_s > peer.hedge_s:
            ordered = sorted(peer.took)
            few = len(ordered) < 8
            peer.hedge_s = max(
                FIRST_HEDGE_S if few else LEAST_HEDGE_S, ordered[int(0.95 * (len(ordered) - 1))]
            )

    def silent(self, node: str, now: float) -> None:
        """It did not answer, or not while another one did."""
        self._peer(node).suspect.again(now)

    def lacks(self, node: str, of: Slice, number: int, now: float) -> None:
        """A node's copy of a slice does not hold yet what is published, a number."""
        self._behind = {  # (those of indexes that are no more go by this)
            known: pauses
            for known, pauses in self._behind.items()
            if not all(one.past(now) for one in pauses.values())
        }
        pause = self._behind.setdefault(of, {}).setdefault(node, _Pause())
        pause.again(now)
        pause.number = number

    def holds(self, node: str, of: Slice, newest: int) -> None:
        """It has answered, and holds numbers up to one."""
        pauses = self._behind.get(of)
        if pauses is None or node not in pauses or newest < pauses[node].number:
            return
        del pauses[node]
        if not pauses:
            del self._behind[of]

    def behind(self, of: Slice, now: float) -> set[str]:
        """The nodes whose copies of a slice are to be done without for a while, if others answer."""
        pauses = self._behind.get(of, {})
        return {node for node, one in pauses.items() if one.until > now}.union(self._not_waited_for(*of))

    def waited_for(self, copies: Sequence[str], of: Slice) -> list[str]:
        """The copies of a slice without those that the leader does not wait for."""
        behind = self._not_waited_for(*of)
        return [node for node in copies if node not in behind]

    def order(self, copies: Sequence[str], now: float, of: Slice | None = None) -> list[str]:
        """The copies with those that are behind, and those on suspected nodes, last."""
        behind = self.behind(of, now) if of is not None else ()
        return sorted(copies, key=lambda node: (self._peer(node).suspect.until > now, node in behind))

    def answering(self, copies: Sequence[str], now: float) -> list[str]:
        """The copies on nodes that are not suspected."""
        return [node for node in copies if self._peer(node).suspect.until <= now]

    def less_busy(self, one: str, other: str) -> str:
        """Of two nodes the one with less to do."""
        return min(one, other, key=lambda node: self._peer(node).under_way)

    def hedge_s(self, node: str, short: bool) -> float:
        """After how long without an answer another copy is asked."""
        peer = self._peers.get(node)
        usual = peer.hedge_s if peer is not None else FIRST_HEDGE_S
        return usual if short else max(LONG_HEDGE_S, usual)

    def may_hedge(self) -> bool:
        """Take one from the budget, if there is one."""
        if self._budget < 1:
            return False
        self._budget -= 1
        return True

    def _peer(self, node: str) -> _Peer:
        return self._peers.setdefault(node, _Peer())
