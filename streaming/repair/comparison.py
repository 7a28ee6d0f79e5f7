"""How a repair compares an index with its source: by the parts of verification."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from keytide.model.timestamp import Timestamp
from keytide.wire import digests
from streaming.verify.core.comparing import Evidence, SourceDocument
from streaming.verify.core.difference import Holding
from streaming.verify.core.newest import IndexPlan
from streaming.verify.documents import DocumentComparison, Scene, VerificationResult
from streaming.verify.slices import Pin
from streaming.verify.source import SourceRanges, SourceReader
from streaming.verify.tasks import VerifyWork
from streaming.verify.verification import Verification


class LiveComparison:
    """Looks at the one index of a scene (`streaming.repair.repair.IndexComparison`).

    Args:
        reader: makes the reader of the source, told how many records there are.
        origins: whether a build of the index began with a table.
        began: called with each whole look when it begins.
    """

    def __init__(
        self,
        scene: Scene,
        reader: Callable[[int], SourceReader],
        *,
        origins: bool,
        began: Callable[[Verification], None] = lambda _: None,
    ) -> None:
        (self._index,) = scene.indexes
        self._scene = scene
        self._reader = reader
        self._origins = origins
        self._began = began

    def whole(self) -> VerificationResult:
        verification = Verification(self._scene, self._reader, origins=self._origins)
        self._began(verification)
        return verification.run()

    def some(
        self, pin: Pin, ids: set[bytes]
    ) -> tuple[Mapping[bytes, SourceDocument], Mapping[bytes, Sequence[Holding]], Evidence]:
        index, began = self._index, time.monotonic()
        self._scene.facts.check(pin.timestamp, pin.incarnation)
        starts, ends = self._scene.starts(), pin.timestamp.offsets()
        documents = SourceRanges.of(self._scene.keyspace, starts, ends).documents
        work = VerifyWork(
            definitions=((index.id, msgspec.json.encode(index.definition)),),
            indexes=(IndexPlan(index.id, index.slices, tuple(index.splits)),),
            bits=digests.bits_for(documents),
            range_bits=0,
            routes=(),
            until=ends,
        )
        reader = self._reader(documents)
        try:
            judging = DocumentComparison(self._scene, reader, work, VerificationResult(pin, {}), began)
            truths = judging.truths(pin, {}, {index.id: ids})
            held = judging.held(pin, {}, {index.id: ids})
            evidence = judging.evidence()
        finally:
            reader.close()
        self._scene.facts.check(pin.timestamp, pin.incarnation)
        return truths, {docid: some for (_, docid), some in held.items()}, evidence

    def ends(self) -> dict[int, int]:
        return self._scene.facts.ends()

    def pin(self, at_least: Timestamp) -> Pin:
        return self._scene.slices.pin(self._scene.stopped, at_least)

    def release(self, pin: Pin) -> None:
        self._scene.slices.release(pin)
