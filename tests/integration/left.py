"""What lies about below a cluster's data folder and in its Kafka, to be compared before and after what is to
leave nothing behind."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient

from deploy.cluster import KAFKA_FOLDER
from tests.integration.world import World


class Left(NamedTuple):
    """
    Attributes:
        files: files and empty folders of all parts but Kafka, without logs.
    """

    files: frozenset[str]
    topics: frozenset[str]
    groups: frozenset[str]

    def beside(self, other: Left) -> list[str]:
        """What is here or there alone."""
        return sorted(name for mine, theirs in zip(self, other, strict=True) for name in mine ^ theirs)


def left(world: World, kafka: AdminClient, known: Iterable[Path] = ()) -> Left:
    """
    Args:
        known: folders that may be there, with all that is in them.
    """
    root = world.cluster.data_dir
    passed = {root / KAFKA_FOLDER, root / "logs", *known}
    found: set[Path] = set()
    for name, folders, names in os.walk(root):
        found.update(Path(name, one) for one in names)
        if not folders and not names:
            found.add(Path(name))
        folders[:] = [one for one in folders if Path(name, one) not in passed]
    return Left(
        frozenset(str(one.relative_to(root)) for one in found if one.name != "slices"),  # (stays, empty)
        frozenset(kafka.list_topics(timeout=30).topics),
        frozenset(one.group_id for one in kafka.list_consumer_groups().result(30).valid),
    )
