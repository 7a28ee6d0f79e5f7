"""What a million documents cost: seconds of a processor in each part, bytes in Kafka and on the nodes' disks.

Documents are indexed live, first by one index, then by five, each in a cluster of its own. Processor seconds
are those of the stretch from the first document that the projector reads to a stable scan that has all; disks
are looked at then, blocks that are really taken: deltas that are folded later are in them.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from benchmarks.documents import PARTITIONS
from benchmarks.harness import Bench, Result, machine_state, say
from benchmarks.throughput import BY_CITY, FIVE, MILLION, TOPIC, check_count, fill, replayed

_PARTITION: Final = re.compile(r"(.+)-\d+")
"""A folder of Kafka's: a topic, and one of its partitions."""


def cost(documents: int = MILLION) -> Result:
    """Processor seconds and bytes for a million documents, by part, with one index and with five."""
    result = Result("cost", machine=machine_state())
    result.sizes = {"documents": documents, "partitions": PARTITIONS, "slices": 8, "nodes": 2}
    for statements in ((BY_CITY,), FIVE):
        _of(result, statements, documents)
    return result


def _of(result: Result, statements: tuple[str, ...], documents: int) -> None:
    """Add the figures with so many indexes; their names begin with the number of indexes."""
    many, names = len(statements), [statement.split()[2] for statement in statements]
    with Bench() as bench:
        bench.make_topic(TOPIC, PARTITIONS)
        for statement in statements:
            bench.create_index(statement)
        fill(bench, range(documents))
        before = taken(bench.folder)
        seconds = replayed(bench, result, names)
        for name, statement in zip(names, statements, strict=True):
            if "UNNEST" not in statement:
                check_count(bench, name, documents)
        after = taken(bench.folder)
    millions, whole = documents / MILLION, result.figures.pop("cpu_seconds")
    used = {
        "cpu_s": {part: whole * share for part, share in result.shares.items() if part != "benchmark"},
        "mb": {what: (size - before[what]) / 1e6 for what, size in after.items() if size > before[what]},
    }
    for kind, by_part in used.items():
        shown = {part: round(value / millions, 1) for part, value in by_part.items()}
        result.sizes[f"{kind}_per_million_by_{many}"] = shown
        result.figures[f"indexes_{many}_{kind}_per_million"] = round(sum(by_part.values()) / millions, 1)
    result.figures[f"indexes_{many}_documents_per_s"] = round(documents / seconds)
    say(f"{many} indexes, each million: {result.sizes[f'cpu_s_per_million_by_{many}']} s of a processor")
    say(f"{many} indexes, each million: {result.sizes[f'mb_per_million_by_{many}']} MB")


def taken(folder: Path) -> dict[str, int]:
    """Bytes that are taken of disks below a cluster's folder: by topic, and by node."""
    found: dict[str, int] = defaultdict(int)
    for parts, size in folders_taken(folder):
        topic = _PARTITION.fullmatch(parts[-1]) if len(parts) > 1 and parts[0].startswith("kafka") else None
        found[f"topic {topic.group(1)}" if topic else (parts[0] if parts else "cluster")] += size
    return found


def folders_taken(folder: Path) -> Iterator[tuple[tuple[str, ...], int]]:
    """The folders below one, by their names from there, and what the files of each take of disks, bytes."""
    for at, _, files in os.walk(folder):
        size = 0
        for name in files:
            with suppress(FileNotFoundError):  # (segments and deltas come and go)
                size += os.stat(os.path.join(at, name)).st_blocks * 512
        if files:
            yield Path(at).relative_to(folder).parts, size
