"""The tasks of this release, by name (`indexer.scan.local.tasks`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from indexer.scan.aggregate import task as aggregate_task
from indexer.scan.local.tasks import Task
from indexer.scan.stream import block as streaming_block
from indexer.scan.tail import changes as tail_changes
from indexer.validation import versions

TASKS: Final[Mapping[str, Task]] = {
    aggregate_task.TASK: aggregate_task.aggregate_slice,
    versions.TASK: versions.versions_task,
    streaming_block.TASK: streaming_block.read_block,
    tail_changes.TASK: tail_changes.find_changes,
}
