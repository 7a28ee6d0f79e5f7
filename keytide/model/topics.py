"""Names of the topics that a cluster uses. Index topics are named by index id, which is never
reused (R19)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

LONGEST_TOPIC: Final = 249
"""Kafka's limit for the characters of a topic's name."""
LONGEST_CLUSTER_NAME: Final = 120
"""Half of a topic's name is left for the names of indexes."""
QUEUES: Final = ("mutations.", "backfill.")
"""What names of queues have behind the cluster's name, which may itself end so (`a` and `a.mutations`)."""


def cluster_name(name: str) -> str:
    """`name`, if it can begin the names of topics.

    Raises:
        ValueError: it cannot.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*+", name) or len(name) > LONGEST_CLUSTER_NAME:
        raise ValueError(
            "a cluster's name begins its topics' names: letters, digits, . _ and -, not first one of the "
            f"signs, at most {LONGEST_CLUSTER_NAME} characters"
        )
    return name


class Topics(NamedTuple):
    """Topic names of one cluster.

    Attributes:
        cluster: the prefix, the cluster's name.
    """

    cluster: str

    @property
    def metadata(self) -> str:
        return f"{self.cluster}.metadata"

    @property
    def control(self) -> str:
        return f"{self.cluster}.control"

    @property
    def reports(self) -> str:
        return f"{self.cluster}.reports"

    @property
    def builds(self) -> str:
        """Journals of builds (`streaming.drivers.journal`)."""
        return f"{self.cluster}.builds"

    def mutations(self, index: str) -> str:
        return f"{self.cluster}.mutations.{index}"

    def backfill(self, index: str, build: str) -> str:
        """One topic per build of an index, so that a cancelled build's messages can never reach the next
        one."""
        return f"{self.cluster}.backfill.{index}.{build}"

    @property
    def projector_group(self) -> str:
        """The consumer group of the projectors; its commits carry the activated catalog version (R13)."""
        return f"{self.cluster}.projector"
