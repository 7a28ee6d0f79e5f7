"""What an index must hold, said naively: walks the whole history, shares nothing with the indexer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.simulation.wire import Version, slice_of_id, slice_of_key

History = Sequence[Sequence[Version]]
"""By partition, by offset: every version that was ever written, compacted ones too."""


def entries_at(
    history: History, offsets: Mapping[int, int], slice_number: int, slices: int
) -> dict[bytes, bytes]:
    """Entry key -> value of one slice at a timestamp."""
    newest: dict[bytes, Version] = {}
    for partition, versions in enumerate(history):
        for version in versions[: offsets.get(partition, 0)]:
            newest[version.id] = version
    return {
        key + version.id: version.value
        for version in newest.values()
        if not version.bad
        for key in version.keys
        if slice_of_key(key, slices) == slice_number
    }


def skips_at(
    history: History, offsets: Mapping[int, int], slice_number: int, slices: int
) -> set[tuple[int, int]]:
    """(partition, offset) of every line of one slice's skip ledger at a timestamp."""
    return {
        (partition, version.offset)
        for partition, versions in enumerate(history)
        for version in versions[: offsets.get(partition, 0)]
        if version.bad and slice_of_id(version.id, slices) == slice_number
    }
