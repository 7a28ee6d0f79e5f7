"""The types of answers, for the OpenAPI page. Pure.

Answers are put together as bytes (`indexer.scan.gather.service`), so these are for the page only. That they
are what is answered, no member more or less, is held by `tests/unit/test_schema_fuzz.py`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from indexer.scan.request.request import OffsetAndEpoch
from keytide.model.health import HealthStatus, Reason
from keytide.model.roles import Role


class Problem(msgspec.Struct):
    """An RFC 9457 problem document. Some types have further members."""

    type: Annotated[str, Meta(description="a short word that clients may match on")]
    title: str
    status: int
    detail: Annotated[str, Meta(description="what is wrong, and where")]
    next_step: Annotated[str | UnsetType, Meta(description="what to do about it")] = UNSET


class SliceRead(msgspec.Struct, forbid_unknown_fields=True):
    """What one slice read for an answer."""

    slice: int
    node: str
    newest: Annotated[int | None, Meta(description="the newest snapshot that it holds")]
    snapshot: int | None
    rows_read: int


class Explanation(msgspec.Struct, forbid_unknown_fields=True):
    """How the snapshot was chosen (`explain`)."""

    snapshot: int | None
    waited_ms: float
    waited_for: list[str]
    slices_of_index: int
    rounds: int
    slices: Annotated[list[SliceRead], Meta(description="the slices that were asked")]


class AnswerHead(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """From which moment an answer is."""

    snapshot: Annotated[int | None, Meta(description="its number; null for `tip`")]
    timestamp: Annotated[
        dict[str, OffsetAndEpoch], Meta(description="source partition -> what was read up to; an `at_least`")
    ]
    session: Annotated[str, Meta(description="token: never see an older snapshot than this answer's")]
    staleness_ms: Annotated[int | None, Meta(description="how long ago the snapshot covered the source")]


class Explained(AnswerHead, kw_only=True):
    explain: Explanation | UnsetType = UNSET


class ScanRow(msgspec.Struct, forbid_unknown_fields=True):
    """One entry; `columns` chooses the members."""

    key: list[Any] | UnsetType = UNSET
    missing: Annotated[
        list[int] | UnsetType, Meta(description="positions of key parts that the document does not have")
    ] = UNSET
    id: str | UnsetType = UNSET
    include: dict[str, Any] | UnsetType = UNSET
    validated: Annotated[
        bool | UnsetType, Meta(description="with `validate`: false when the primary could not tell")
    ] = UNSET
    reason: str | UnsetType = UNSET


class Validated(msgspec.Struct, forbid_unknown_fields=True):
    """What validation found (`validate`)."""

    valid: int
    stale: Annotated[int, Meta(description="rows that were left out")]
    unknown: Annotated[dict[str, int], Meta(description="rows that were kept, by why they are not known")]
    waited_ms: int
    detail: str | UnsetType = UNSET


class ScanAnswer(Explained, kw_only=True):
    """A page of rows."""

    rows: list[ScanRow]
    page: Annotated[str | None, Meta(description="token of the next page; null for the last")]
    validation: Validated | UnsetType = UNSET


class CountAnswer(Explained, kw_only=True):
    """A count."""

    count: int


class AggregateGroup(msgspec.Struct, forbid_unknown_fields=True):
    """One group."""

    key: list[Any]
    values: Annotated[dict[str, Any], Meta(description="function -> what it gives")]
    missing: list[int] | UnsetType = UNSET
    ignored: Annotated[
        dict[str, int] | UnsetType,
        Meta(description="function -> values left out because they are no numbers"),
    ] = UNSET


class AggregateAnswer(Explained, kw_only=True):
    """Groups in the order of their keys."""

    groups: list[AggregateGroup]
    more: Annotated[bool, Meta(description="whether there are groups behind the last one")]


class HoldAnswer(AnswerHead, kw_only=True):
    """A snapshot that is held."""

    at: Annotated[str, Meta(description="its token: `at` of every kind of request")]
    slices: int
    expires_in_s: Annotated[int, Meta(description="how long it is held after its last use")]


class Estimate(msgspec.Struct, forbid_unknown_fields=True):
    """How many entries a plan reads, about."""

    entries_read: int
    entries_of_index: Annotated[int | None, Meta(description="null when this node holds none of it")]
    assumed: bool


class PlanAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """How a SELECT is answered: docs/query.md."""

    index: str
    columns: list[str]
    spans: list[str]
    reverse: bool
    structure: Annotated[str, Meta(description="of the index, as USING has it")]
    slices_asked: list[int]
    slices_of_index: int
    partitions_asked: Annotated[list[int], Meta(description="those that the slices belong to")]
    partitions_of_index: int
    residual: Annotated[str | None, Meta(description="what slices test, entry by entry")]
    pushed_down: list[str]
    group_by: list[str]
    aggregates: list[str]
    sorted_by: Annotated[list[str], Meta(description="what this node sorts by; the index has another order")]
    limit: int | None
    offset: int
    estimate: Estimate
    other_indexes: Annotated[dict[str, str], Meta(description="index -> why it was not chosen")]


class QueryAnswer(Explained, kw_only=True):
    """Rows of a SELECT."""

    columns: list[str]
    rows: list[list[Any]]
    index: Annotated[str, Meta(description="which served it")]
    page: str | None
    ignored: dict[str, int] | UnsetType = UNSET
    plan: PlanAnswer | UnsetType = UNSET


class ScannableIndex(msgspec.Struct, forbid_unknown_fields=True):
    """An index that can be scanned, when it is READY."""

    name: str
    keyspace: str
    state: str
    statement: str
    slices: int


class HealthAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """That the process lives."""

    status: str
    node: str


class ReadyAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """Whether the node can answer, and how it is, as it sees itself."""

    ready: bool
    node: str
    roles: list[Role]
    protocol: int
    status: HealthStatus
    reasons: list[Reason]
