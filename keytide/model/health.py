"""The verdict of health: what is not in order, why, and what to do. One vocabulary for every process that
gives one and everything that shows one. Pure.

*failing*: something that was promised does not work now: scans of an index are refused, or nothing new comes
into any snapshot. *degraded*: all answers come, but something is to be looked at before it fails. *ok*: a
note; nothing has to be done.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

HealthStatus = Literal["ok", "degraded", "failing"]
Kind = Literal["cluster", "kafka", "keyspace", "index", "slice", "node", "projector", "build", "job"]
LEVELS: Final[dict[HealthStatus, int]] = {"ok": 0, "degraded": 1, "failing": 2}
KINDS: Final[tuple[Kind, ...]] = (
    "cluster",
    "kafka",
    "keyspace",
    "index",
    "slice",
    "node",
    "projector",
    "build",
    "job",
)


class Reason(msgspec.Struct, frozen=True):
    """One thing that is to be said.

    Attributes:
        kind: of the subject.
        subject: in words, e.g. `node node-1`.
        status: what it does to the whole.
        reason: what is the matter.
        next_step: what to do.
    """

    kind: Kind
    subject: str
    status: HealthStatus
    reason: str
    next_step: str


class Verdict(msgspec.Struct, frozen=True):
    """The status of the whole is the worst of its reasons'."""

    status: HealthStatus
    reasons: list[Reason]

    @property
    def well(self) -> bool:
        return self.status == "ok"

    def as_json(self) -> dict[str, Any]:
        """`GET /v1/health`."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document

    def worst_of(self, *kinds: Kind) -> HealthStatus:
        """The worst status of subjects of these kinds."""
        return worst(one.status for one in self.reasons if one.kind in kinds)


def worst(statuses: Iterable[HealthStatus]) -> HealthStatus:
    """The worst of them; `ok` of none."""
    return max(statuses, key=LEVELS.__getitem__, default="ok")


def verdict(reasons: Iterable[Reason]) -> Verdict:
    """What follows from all reasons, the worst first."""
    found = sorted(reasons, key=lambda one: (-LEVELS[one.status], KINDS.index(one.kind), one.subject))
    return Verdict(worst(one.status for one in found), found)


def single(kind: Kind, subject: str, status: HealthStatus, reason: str, next_step: str) -> Verdict:
    """A verdict of one reason: whoever gives it knows nothing of the rest."""
    return Verdict(status, [Reason(kind, subject, status, reason, next_step)])


def read(document: object) -> Verdict:
    """A verdict from its JSON document.

    Raises:
        msgspec.ValidationError: it is none.
    """
    return msgspec.convert(document, Verdict)
