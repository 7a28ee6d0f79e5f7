"""The tasks that slices of this release can work on, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from indexer.scan.tasks import Task

TASKS: Final[Mapping[str, Task]] = {}
