"""What a reader may ask of `POST /v1/query`, and the token of a query's further pages. Pure."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from indexer.scan.plan.tokens import PageToken, Token
from indexer.scan.request.request import Moment
from keytide.definition.statement import MAX_STATEMENT


class QueryRequest(Moment, kw_only=True, frozen=True):
    """Body of `POST /v1/query`."""

    sql: Annotated[
        str,
        Meta(
            max_length=MAX_STATEMENT,
            description="SELECT ... FROM keyspace, or EXPLAIN SELECT ...; may be left out with `page`",
        ),
    ] = ""
    limit: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="rows per page; LIMIT counts the rows of all pages"),
    ] = None
    page: Annotated[
        str | None, Meta(description="token of an earlier answer: its next page, of the same query")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sql and self.page is None:
            raise ValueError("give a query in `sql`")


class QueryToken(Token, frozen=True, tag="q"):
    """Where the rows of a query go on.

    Attributes:
        scan: of the index that serves it; `columns` is not used.
        sql: the query.
        left: how many rows its LIMIT leaves; None without one.
    """

    scan: PageToken
    sql: str
    left: int | None
