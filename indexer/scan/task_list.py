"""The tasks of this release, by name (`indexer.scan.tasks`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from indexer.scan import aggregate_task
from indexer.scan.tasks import Task

TASKS: Final[Mapping[str, Task]] = {
    aggregate_task.TASK: aggregate_task.aggregate_slice,
}
