"""What a reader may ask of a tail. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from indexer.scan.request.request import Column, Question


class TailRequest(Question, frozen=True):
    """Query of `GET /v1/indexes/{name}/tail`."""

    columns: Annotated[list[Column] | None, Meta(description="what each row holds")] = None
    initial: Annotated[bool, Meta(description="tell the rows of the first snapshot, too")] = False
    events: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="how many events to tell, the first one included; without it the tail has no end"),
    ] = None
    resume: Annotated[
        str | None,
        Meta(description="id of the event behind which to go on; the header `Last-Event-ID` says the same"),
    ] = msgspec.field(default=None, name="from")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.consistency != "stable":
            raise ValueError("a tail goes from snapshot to snapshot: only `stable` is possible")
        if self.explain:
            raise ValueError("a tail explains nothing")
        if self.resume is not None and self.at is not None:
            raise ValueError("a tail goes on either from `from` or from `at`")
