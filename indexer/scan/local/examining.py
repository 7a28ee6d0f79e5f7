"""What is impossible about entries that a slice gave.

The base of a slice has checksums (`indexer.store`), which are compared when it is opened and from time to
time, and not with every read. So what a read finds impossible (keys out of order, bytes that are no key,
included columns that are no JSON) is damage more likely than a bug, and the slice that it came from has to be
found: the endpoint, which merges many slices, asks each to examine what it gave (`ReadShape.examine`). Pure.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence

import msgspec

from indexer.scan.local.tasks import Pace
from indexer.scan.peer.messages import Entry, ReadSpan
from indexer.scan.plan.selection import Shape, stretches
from indexer.scan.shape.rows import RowMaker
from indexer.view import ReadableSnapshot
from keytide.errors import InvariantViolationError
from keytide.model.entry import unpack_value


def examined(
    snapshot: ReadableSnapshot, span: ReadSpan, after: bytes, most: int, shape: Shape, pace: Pace
) -> str:
    """The `flaw` of so many entries behind `after`, of which a block is held at once."""
    for block in snapshot.rows_of(list(stretches(span, after)), span.reverse, most):
        if found := flaw(block, span, after, shape):
            return found
        if block:
            after = block[-1][0]
        pace.look()
    return ""


def flaw(entries: Sequence[Entry], span: ReadSpan, after: bytes, shape: Shape) -> str:
    """What is impossible about the entries that a slice gave for a span, "" when nothing is.

    Args:
        after: where the slice was to go on.
    """
    keys = [key for key, _ in entries]
    if after:
        keys.insert(0, after)
    in_order = operator.gt if span.reverse else operator.lt
    for one, other in itertools.pairwise(keys):
        if not in_order(one, other):
            return f"entry {_shown(other)} is out of order behind {_shown(one)}"
    for key, _ in entries:
        if not any(low <= key and (high is None or key < high) for low, high in span.spans):
            return f"entry {_shown(key)} lies outside of what was read"
    maker = RowMaker(shape, None)
    for entry in entries:
        try:
            shape.structure.check(*entry)
            maker.rows([entry])
            _, include = unpack_value(shape.structure.in_full(*entry)[1])
            if include is not None:
                msgspec.json.decode(include)
        except (InvariantViolationError, UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
            return f"entry {_shown(entry[0])} cannot be read ({type(error).__name__})"
    return ""


def _shown(key: bytes) -> str:
    """The beginning of an entry key, for a reason that people read."""
    return key[:24].hex() + ("..." if len(key) > 24 else "")
