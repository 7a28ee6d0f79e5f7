"""The tasks of this release, by name (`indexer.scan.tasks`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from indexer.scan import aggregate_task, streaming_block, tail_changes
from indexer.scan.tasks import Task
from indexer.validation import versions

TASKS: Final[Mapping[str, Task]] = {
    aggregate_task.TASK: aggregate_task.aggregate_slice,
    versions.TASK: versions.versions_task,
    streaming_block.TASK: streaming_block.read_block,
    tail_changes.TASK: tail_changes.find_changes,
}
