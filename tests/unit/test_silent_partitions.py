"""R14: what is sent of a partition without writes."""

from __future__ import annotations

from keytide.catalog.catalog import Catalog
from keytide.catalog.records import IndexRecord, KeyspaceRecord, record_key
from keytide.wire.messages import Segment, SegmentBatch, decode
from projector.core import pipeline
from projector.progress.events import Key
from tests.simulation.source import definition


def test_a_partition_in_which_nothing_was_read_speaks_to_every_slice() -> None:
    catalog = Catalog()
    slices = definition("a").slices
    for record in (
        KeyspaceRecord("ks", "T", 2, 1),
        IndexRecord("a", definition("a"), "READY", 1, [["n"]] * slices, "b", 0),
    ):
        catalog.put(record_key(record), record)
    made = pipeline.Pipeline("me", pipeline.MessageLimits(1 << 20, 1 << 20))
    sent = [
        (message.slice, decode(message.value))
        for message in made.emit(catalog, "ks", {1: pipeline.batches_of(Key("ks", 1), 10, 10, 4, [])}, 0)
    ]
    assert [number for number, _ in sent] == list(range(slices))
    for _, message in sent:
        assert isinstance(message, SegmentBatch)
        assert message.segments == [Segment(1, 4, 10, 10, below=4)]
