"""What the name of an index may be. Pure."""

from __future__ import annotations

from typing import Final

from coordinator.catalog.registry import ConflictError
from keytide.catalog.records import IndexRecord
from keytide.errors import CallerError
from keytide.model.topics import LONGEST_TOPIC, QUEUES, Topics

_NUMBER: Final = "9" * 10
"""As long as numbers of indexes and builds can ever be: each costs the metadata topic a record."""


def taken(by: IndexRecord) -> ConflictError:
    """That a name is that of another index already."""
    return ConflictError(
        f"there is an index {by.name!r} already, on {by.keyspace}",
        problem_type="index-exists",
        next_step=f"choose another name, or DROP INDEX {by.name} first",
    )


def check_name(topics: Topics, name: str) -> None:
    """See that queues can be named after an index (those that there are keep their names).

    Raises:
        CallerError: they cannot.
    """
    if name.startswith(QUEUES):
        raise CallerError(
            f"{name!r} cannot be the name of an index: its queue would have the name of one of a cluster "
            f"{topics.cluster}.{name.partition('.')[0]}",
            status=422,
            problem_type="invalid-name",
            next_step="choose a name that does not begin with mutations. or backfill.",
        )
    longest = len(topics.backfill(f"{name}-{_NUMBER}", f"b{_NUMBER}"))
    if longest > LONGEST_TOPIC:
        raise CallerError(
            f"the name of the index is too long by {longest - LONGEST_TOPIC} characters: names of topics "
            f"have {LONGEST_TOPIC}, and those of its queues begin with the cluster's",
            status=422,
            problem_type="invalid-name",
            next_step="choose a shorter name",
        )
