"""Which version of its document a row comes from: (partition, offset) as the back index of a slice has it.

Entries do not hold it. A page's ids are asked of the slices that the entries lie in (a task of
`indexer.scan.local.tasks`, one request per node), from the same snapshot and while it is still held. Which
slice that is follows from the key or the id, as the router had it; where the partitioning goes by something
else, every slice of the page is asked.

Of a tip scan slices may have moved on meanwhile: then there is a later version, or none. Both are honest: the
later one is what the primary must have, and of a row without a version nothing is concluded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from indexer.scan.gather.scatter import SliceAnswers as Answered
from indexer.scan.gather.scatter import Target, ask_task
from indexer.scan.peer.messages import SliceReader
from indexer.validation.core.primary import UNKNOWN_OFFSET, AnsweredDocument
from keytide.catalog.partitioning import Partitioning
from keytide.collation import encode_part, skip_key
from keytide.collation.layout import INVERTED
from keytide.definition.index import IndexDefinition
from keytide.model.entry import MAX_ID_BYTES

if TYPE_CHECKING:
    from indexer.scan.local.tasks import SliceWork

TASK: Final = "versions"

VersionColumns = tuple[list[int], list[int]]
"""Partition and offset of each id that was asked for; the offset is -1 for one that is not in the slice."""

_encode = msgspec.msgpack.Encoder().encode
_decode_body = msgspec.msgpack.Decoder(dict[int, msgspec.Raw]).decode
_Id = Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_ID_BYTES)]
_decode_ids = msgspec.msgpack.Decoder(list[_Id]).decode
_decode_columns = msgspec.msgpack.Decoder(VersionColumns).decode


def versions_task(work: SliceWork) -> bytes:
    """The task, on one slice: `VersionColumns` for the ids that the body has for it."""
    ids = _decode_ids(_decode_body(work.request.shape.body).get(work.slice, b"\x90"))
    found = [one for part in work.pace.parts(ids) for one in work.snapshot.documents(part)]
    return _encode(
        (
            [0 if one is None else one.partition for one in found],
            [UNKNOWN_OFFSET if one is None else one.offset for one in found],
        )
    )


async def ask_versions(
    target: Target,
    nodes: SliceReader,
    definition: IndexDefinition,
    keys: Sequence[bytes],
    ids: Sequence[bytes],
    splits: Sequence[bytes] = (),
) -> list[AnsweredDocument]:
    """The document and version of each entry.

    Args:
        target: the snapshot that the entries were read from.
        keys, ids: entry keys in full (`keytide.structure`), and the document id of each.
        splits: of the index's record.

    Raises:
        SnapshotMissingError: a slice does not hold the snapshot any more.
        RetryableError: a node did not answer.
    """
    wanted: dict[int, list[bytes]] = {}
    for number, some in _by_slice(target, definition, keys, ids, splits).items():
        wanted[number] = list(some)
    if not wanted:
        return []
    asked = replace(target, nodes={number: target.nodes[number] for number in wanted})
    replies = await ask_task(asked, nodes, TASK, _encode(wanted), Answered())
    versions: dict[bytes, AnsweredDocument] = {}
    for number, result in replies.items():
        for one in map(AnsweredDocument, wanted[number], *_decode_columns(result)):
            known = versions.get(one.id)
            if known is None or known.offset < one.offset:
                versions[one.id] = one
    return [versions[id_] for id_ in ids]


def _by_slice(
    target: Target,
    definition: IndexDefinition,
    keys: Sequence[bytes],
    ids: Sequence[bytes],
    splits: Sequence[bytes],
) -> dict[int, dict[bytes, None]]:
    """Slice -> the ids to ask it for, each once."""
    wanted: dict[int, dict[bytes, None]] = {}
    part, rule = definition.partition_part, Partitioning.of(definition, splits)
    if (part is None and not definition.partitioned_by_id) or rule.unknown:
        once = dict.fromkeys(ids)
        return dict.fromkeys(target.nodes, once) if once else {}
    descending = definition.descending
    inverted = bool(descending) and part is not None and descending[part]
    for key, id_ in zip(keys, ids, strict=True):
        if part is not None:
            start = skip_key(key, part, descending[:part]) if part else 0
            routed_by = key[start : skip_key(key, part + 1, descending)]
            if inverted:
                routed_by = routed_by.translate(INVERTED)
        else:
            routed_by = encode_part(id_.decode())
        number = rule.slice_of(routed_by, id_)
        if number is not None:
            wanted.setdefault(number, {})[id_] = None
    return wanted
