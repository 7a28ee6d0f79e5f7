"""Whether what another node asks can have been meant so. Pure.

The types of the messages say what each member may be (`indexer.scan.peer.messages`, `keytide.wire.digests`,
`keytide.wire.index_lists`), and decoding holds them to it. What only the whole message shows is checked
here, before anything is read: slices that the index has, each once; spans that ascend and do not overlap,
for reads rely on it; buckets that there are. So what a read finds wrong afterwards is not the request's
doing.
"""

from __future__ import annotations

from collections.abc import Sequence

from indexer.scan.peer.messages import HOLDER, LeaseRequest, MalformedRequestError, ReadMessage
from keytide.catalog.catalog import Catalog
from keytide.errors import InvariantViolationError
from keytide.wire.digests import Ask, DigestAsk, EntriesAsk, PinAsk, RowsAsk, SkipsAsk
from keytide.wire.entry_sums import BuiltAsk
from keytide.wire.index_lists import ListAsk


def check(request: ReadMessage | LeaseRequest | Ask | ListAsk, catalog: Catalog) -> None:
    """See that a message makes sense.

    Args:
        catalog: of the node that is asked; of an index that it does not know, slices cannot be checked.

    Raises:
        MalformedRequestError: it does not.
    """
    slices = (
        [request.slice]
        if isinstance(request, DigestAsk | RowsAsk | EntriesAsk | SkipsAsk | BuiltAsk)
        else request.slices
    )
    _check_slices(request.index, slices, catalog)
    match request:
        case ReadMessage():
            _check_spans(request.spans)
        case PinAsk() if request.number >= 0 and (not request.hold or request.hold.startswith(HOLDER)):
            raise MalformedRequestError(f"{request.hold!r} is no name of a verifier's hold")
        case DigestAsk():
            _check_place(request, catalog)
        case RowsAsk() if not all(0 <= bucket < 1 << request.bits for bucket in request.buckets):
            raise MalformedRequestError(f"there are {1 << request.bits} buckets, and others are asked for")
        case ListAsk(what="map"):
            record = catalog.index(request.index)
            if record is not None and not record.definition.structure_type.has_places:
                raise MalformedRequestError(f"index {request.index} has no geometries")


def _check_slices(index: str, slices: Sequence[int], catalog: Catalog) -> None:
    record = catalog.index(index)
    if record is not None:
        count = record.definition.slices
        if not all(0 <= number < count for number in slices):
            raise MalformedRequestError(f"index {index} has {count} slices, and others are asked for")
    if len(set(slices)) < len(slices):
        raise MalformedRequestError("a slice is asked for twice")


def _check_spans(spans: Sequence[tuple[bytes, bytes | None]]) -> None:
    reached: bytes | None = b""
    for low, high in spans:
        if reached is None or low < reached or (high is not None and high <= low):
            raise MalformedRequestError("spans do not ascend, overlap, or are empty")
        reached = high


def _check_place(request: DigestAsk, catalog: Catalog) -> None:
    """See that a digest of a UNIQUE index goes on behind an entry key: it is compared with the next one's."""
    record = catalog.index(request.index)
    if record is None or not record.definition.unique or request.stage != "forward" or not request.after:
        return
    try:
        record.definition.structure.id_start(request.after)
    except InvariantViolationError as error:
        raise MalformedRequestError("`after` is no entry key of the index") from error
