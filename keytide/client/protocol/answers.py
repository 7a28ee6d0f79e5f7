"""What nodes answer (docs/reference), as types, and their problem documents as errors. Pure.

Unknown members are left out, so that a client can read the answers of later releases.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from keytide.errors import CallerError, HistoryChangedError, KeytideError, RetryableError

TimeVector = dict[str, dict[str, int]]
"""Source partition -> `{"offset": next offset, "epoch": leader epoch}`; good as `at_least`, too."""


class SnapshotGoneError(CallerError):
    """The snapshot that was to be read on from is no longer held: begin anew."""

    problem_type = "snapshot-gone"
    status = 410


class TypeChangedError(CallerError):
    """A value did not fit the type of its Arrow column, named in `extra` as `column`."""

    problem_type = "type-changed"
    status = 422


class MisuseError(CallerError):
    """The client's own interface was used in a way that cannot give what was wanted."""

    problem_type = "client-misuse"


class Row(msgspec.Struct, frozen=True, gc=False):
    """One entry.

    Attributes:
        key: the key parts; a missing part is None and its position is in `missing`.
        id: the document id.
        include: the included columns.
        validated: of scans with `validate`: False where the primary could not tell, for which `reason`.
        distance: of the nearest: metres (units, of a plane).
    """

    key: list[Any] = []
    id: str = ""
    include: dict[str, Any] = {}
    missing: list[int] = []
    validated: bool | None = None
    reason: str | None = None
    distance: float | None = None


class AnswerBase(msgspec.Struct, frozen=True, kw_only=True):
    """What every answer has.

    Attributes:
        snapshot: number of the snapshot that was read; None for a tip read.
        timestamp: its place in the source.
        session: token of a session that has seen it.
        staleness_ms: how long ago it covered the whole source.
        explain: how it was chosen, where that was asked for.
    """

    snapshot: int | None
    timestamp: TimeVector
    session: str
    staleness_ms: int | None = None
    explain: dict[str, Any] | None = None


class Page(AnswerBase, frozen=True, kw_only=True):
    """One answer of a scan.

    Attributes:
        page: token of the next page, None for the last.
        validation: of scans with `validate`: how many rows were valid, stale (left out), unknown.
    """

    rows: list[Row]
    page: str | None
    validation: dict[str, Any] | None = None


class Count(AnswerBase, frozen=True, kw_only=True):
    """How many entries a selection has."""

    count: int


class Group(msgspec.Struct, frozen=True):
    """One group of an aggregate.

    Attributes:
        key: the values of `group_by`.
        values: the functions' values by name.
        ignored: by name, how many values a sum or average left out because they are no numbers.
    """

    key: list[Any]
    values: dict[str, Any]
    ignored: dict[str, int] = {}


class Aggregate(AnswerBase, frozen=True, kw_only=True):
    """The groups of an aggregate, in the order of their keys."""

    groups: list[Group]


class QueryPage(AnswerBase, frozen=True, kw_only=True):
    """One answer of a SELECT: the columns' names, the rows, and the index that served it."""

    columns: list[str]
    rows: list[list[Any]]
    index: str | None = None
    page: str | None = None


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that nodes hold for a reader (`at` is its token)."""

    at: str
    snapshot: int
    timestamp: TimeVector
    session: str
    slices: int
    expires_in_s: float


class IndexName(msgspec.Struct, frozen=True):
    """An index that can be scanned.

    Attributes:
        statement: the CREATE INDEX that makes it; "" from a node of an earlier release.
        slices: how many it has; 0 from a node of an earlier release.
    """

    name: str
    keyspace: str
    state: str
    statement: str = ""
    slices: int = 0


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to the followed entries from one snapshot to a later one.

    Attributes:
        snapshot: the later one's number.
        timestamp: its place in the source.
        session: token of a session that has seen it.
        added, removed: rows. A row whose included columns changed is in both. The first event of a tail has
            what there is to begin with as `added`, if `initial` was asked for.
        first: whether this is the first event of a tail that was not resumed.
        token: give it to `tail(resume=...)` to go on from here.
    """

    snapshot: int
    timestamp: TimeVector = {}
    session: str = ""
    added: list[Row] = []
    removed: list[Row] = []
    first: bool = False
    token: str | None = None


AnswerT = TypeVar("AnswerT")
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def decode(kind: type[AnswerT], body: bytes, url: str) -> AnswerT:
    """The answer in a body.

    Raises:
        CallerError: what answers at `url` is no indexer node.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        answer: AnswerT = decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise not_a_node(url, str(error)) from error
    return answer


def not_a_node(url: str, why: str) -> CallerError:
    """The error for answers that no indexer node gives."""
    return CallerError(
        f"{url} does not answer like an indexer node: {why}",
        problem_type="not-a-node",
        next_step="give the URL of an indexer node (`keytide node list`)",
    )


_FAMILIES: dict[tuple[int, str], type[KeytideError]] = {
    (kind.status, kind.problem_type): kind
    for kind in (HistoryChangedError, SnapshotGoneError, TypeChangedError)
}


def problem(status: int, body: bytes, reason: str = "") -> KeytideError:
    """A problem document as an error of the right family.

    Args:
        reason: the status in words, for answers that are no problem documents.
    """
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        document = {"detail": body.decode(errors="replace")[:500] or reason}
    return problem_of(document, status)


def problem_of(document: Mapping[str, Any], status: int) -> KeytideError:
    """The same of a document that was read already."""
    known = {"type", "title", "status", "detail", "next_step"}
    kind = str(document.get("type", "error"))
    family: type[KeytideError] = RetryableError if status in (502, 503, 504) else CallerError
    return _FAMILIES.get((status, kind), family)(
        str(document.get("detail") or f"status {status}"),
        problem_type=kind,
        status=status,
        next_step=str(document.get("next_step", "")),
        **{name: value for name, value in document.items() if name not in known and name.isidentifier()},
    )
