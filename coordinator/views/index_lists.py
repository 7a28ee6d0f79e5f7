"""Pages of an index's lists (skip ledger, violations) from what its nodes answered. Pure."""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from coordinator.unique.violations import key_values
from coordinator.views.loads import by_node
from keytide.catalog.records import IndexRecord
from keytide.catalog.violated import Violated
from keytide.errors import CallerError
from keytide.wire.index_lists import ListAsk, ListPage
from keytide.wire.messages import SliceStatus, UniqueViolation

Document = dict[str, Any]


class BadPageError(CallerError):
    """A page token that none of these lists has given out."""

    problem_type = "bad-page"
    status = 422


def asks(
    index: IndexRecord, what: str, page: str | None, limit: int, nodes: Sequence[str]
) -> list[tuple[str, ListAsk]]:
    """Whom to ask for what: (node, question). Each slice is asked of one node: copies list the same.

    Args:
        page: the token of the page before, None for the first.
        nodes: of each slice the one to ask.

    Raises:
        BadPageError: that is no such token.
    """
    found: list[tuple[str, ListAsk]] = []
    for node, numbers in by_node(range(len(nodes)), nodes):
        if what == "skipped":
            after = None if page is None else _place(page)
            ask = ListAsk("skipped", index.id, numbers, limit, after, reasons=page is None)
        else:
            key = None if page is None else _key(page)
            ask = ListAsk("violations", index.id, numbers, limit, after_key=key)
        found.append((node, ask))
    return found


def skipped(index: IndexRecord, pages: Sequence[ListPage], limit: int, first: bool, total: int) -> Document:
    """A page of the skip ledger.

    Args:
        pages: what the nodes answered.
        first: it is the first page, which counts by reason.
        total: lines in all slices.
    """
    lines = sorted((line for page in pages for line in page.lines), key=attrgetter("partition", "offset"))
    more = len(lines) > limit or any(page.more for page in pages)
    lines = lines[:limit]
    reasons: Counter[str] = Counter()
    for page in pages:
        reasons.update(page.reasons)
    return {
        "index": index.name,
        "skipped": total,
        "reasons": dict(sorted(reasons.items())) if first else None,
        "reasons_complete": all(page.counted_all for page in pages) if first else None,
        "lines": [
            {
                "partition": line.partition,
                "offset": line.offset,
                "id": _text(line.id),
                "reason": line.reason,
                "detail": line.detail,
            }
            for line in lines
        ],
        "page": f"{lines[-1].partition}:{lines[-1].offset}" if more and lines else None,
    }


def kept_violations(index: IndexRecord, violated: Violated, page: str | None, limit: int) -> Document:
    """The same of an index that failed for its violations: its slices are gone, some keys were kept.

    Raises:
        BadPageError: `page` is none of this list.
    """
    after = None if page is None else _key(page)
    left = [one for one in violated.keys if after is None or one.key > after]
    told = ListPage(violations=left[:limit], more=len(left) > limit)
    return violations(index, [told], limit, violated.count, exact=violated.exact)


def violations(
    index: IndexRecord, pages: Sequence[ListPage], limit: int, total: int, *, exact: bool = True
) -> Document:
    """A page of violations.

    Args:
        pages: what the nodes answered.
        total: violations in all slices, those beyond the lists included.
        exact: there are so many; else those beyond the lists are as they were last counted.
    """
    found = sorted((one for page in pages for one in page.violations), key=lambda one: one.key)
    more = len(found) > limit or any(page.more for page in pages)
    found = found[:limit]
    return {
        "index": index.name,
        "unique": index.definition.unique,
        "violations": total,
        "exact": exact,
        "keys": [_violation(index, one) for one in found],
        "page": base64.urlsafe_b64encode(found[-1].key).decode() if more and found else None,
    }


def total(slices: Sequence[SliceStatus | None], what: str) -> int:
    """How long a list is, by the newest heartbeats."""
    return sum(
        (status.skipped if what == "skipped" else status.violations)
        for status in slices
        if status is not None
    )


def exact(slices: Sequence[SliceStatus | None]) -> bool:
    """Whether all violations are listed, and every slice was heard."""
    return all(one is not None and one.listed in (-1, one.violations) for one in slices)


def _violation(index: IndexRecord, one: UniqueViolation) -> Document:
    times = sorted(document.time for document in one.documents)
    return {
        "key": key_values(index, one.key),
        "since_snapshot": one.number,
        "since": times[1],
        "documents": [
            {
                "id": _text(document.id),
                "partition": document.partition,
                "offset": document.offset,
                "time": document.time,
            }
            for document in one.documents
        ],
        "more": one.more,
    }


def _text(docid: bytes) -> str:
    """A document id; bytes that are no UTF-8 (which is why it was skipped) as \\xNN."""
    return docid.decode(errors="backslashreplace")


def _place(page: str) -> tuple[int, int]:
    partition, separator, offset = page.partition(":")
    if not (separator and partition.isdecimal() and offset.isdecimal() and len(page) < 40):
        raise _bad_page(page)
    return int(partition), int(offset)


def _key(page: str) -> bytes:
    try:
        return base64.b64decode(page.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise _bad_page(page) from error


def _bad_page(page: str) -> BadPageError:
    return BadPageError(
        f"{page[:80]!r} is no page of this list",
        next_step="give `page` as the page before has it, or leave it out for the first page",
    )
