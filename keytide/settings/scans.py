"""Settings of scans, of gateways, and of primaries that scans are validated against.
(`keytide.settings.settings` has the others, and how they are read.)"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator


class Section(BaseModel):
    """One section of the settings: a name that it does not have is an error."""

    model_config = ConfigDict(extra="forbid")


class ScanSettings(Section):
    default_limit: int = Field(1_000, description="rows per page when the request names no limit")
    max_limit: int = Field(100_000, description="rows per page at most")
    max_page_bytes: int = Field(
        16 << 20,
        ge=1 << 10,
        description="bytes of keys and values of one page: with the row that reaches them it ends, short of "
        "its limit, and has a token for the next one; each row may be as long as a document, and a node has "
        "a page in memory some times over while it gathers and writes it",
    )
    default_timeout_ms: int = Field(
        default=5_000,
        description="how long a scan waits for its snapshot and its slices when it does not say",
    )
    max_timeout_ms: int = Field(default=120_000, description="the longest wait that a scan may ask for")
    first_lease_s: int = Field(
        10,
        description="how long the token of a first page keeps its snapshot: few are ever used, and a kept "
        "snapshot keeps disk from being reused",
    )
    lease_s: int = Field(60, description="how long a page token keeps its snapshot after its last use")
    max_leases: int = Field(
        400,
        description="snapshots of one index that a node keeps for page tokens, holds and tails at once; "
        "beyond it those go first that only gave first pages, for which a quarter is kept free",
    )
    max_client_leases: int = Field(
        100,
        ge=1,
        description="of them that one client (API token, or address) may keep of each kind: pages that go "
        "on, holds, tails; one more is refused with 429, so that no reader takes the others' places",
    )
    max_hold_s: int = Field(
        3_600,
        description="how long a held snapshot may be kept after its last use: a kept snapshot keeps disk "
        "from being reused, also when its holder is gone",
    )
    max_spans: int = Field(
        1_000, description="spans of one request: each costs every slice a seek per block of rows"
    )
    max_offset: int = Field(
        1_000_000,
        description="rows that a scan may leave out at its start: all of them are read; page tokens cost "
        "nothing for rows gone by",
    )
    max_groups: int = Field(
        100_000,
        ge=1,
        description="groups, or distinct values, of one aggregate: a node holds all of them in memory, some "
        "hundred bytes each beside their values, and in the answer there is no paging",
    )
    max_sort_rows: int = Field(
        100_000,
        ge=1,
        description="rows that a node sorts for one query whose order no index has: it holds all of them in "
        "memory, or as many as LIMIT and OFFSET name",
    )
    max_query_bytes: int = Field(
        64 << 20,
        ge=1 << 10,
        description="bytes of keys and values that one aggregate, or one query that sorts (by distance, "
        "too), holds at once: "
        "max_groups and max_sort_rows bound how many, each may be as long as a document",
    )
    long_readers: int = Field(
        1,
        ge=1,
        le=16,
        description="threads of a node that counts, aggregates and filtered reads share once they take "
        "longer than a moment: Python runs one at a time, so more help only while one waits for the disk, "
        "and stand in the way of short scans",
    )
    max_streams: int = Field(
        16,
        ge=1,
        description="streams (NDJSON, Arrow) that a node runs at once: each has some times "
        "stream_block_bytes in memory",
    )
    stream_block_bytes: int = Field(
        4 << 20,
        ge=1 << 10,
        description="bytes of keys and values that a stream, or a query that sorts, reads at once, over all "
        "slices, and of changes that a tail collects: more makes streams hardly faster",
    )
    stream_stall_s: float = Field(
        30.0,
        gt=0,
        description="how long a reader of a stream or tail may take nothing (256 KiB) before it is let go: "
        "its snapshot keeps disk from being reused",
    )
    max_tails: int = Field(
        64, ge=1, description="tails that a node runs at once: each compares its selection again and again"
    )
    tail_lease_s: int = Field(
        60,
        ge=3,
        description="how long the moment that a tail told last is held after its reader went away: the time "
        "to resume it",
    )
    tail_heartbeat_s: float = Field(
        15.0,
        gt=0,
        description="how long a tail may be silent while nothing changes; then a comment, and the place to "
        "resume from, is sent: proxies, and clients, take a connection for dead that is silent for a minute",
    )


class GatewaySettings(Section):
    host: str = Field("127.0.0.1", description="where `keytide gateway` listens")
    port: int = Field(8092, description="its scan endpoint; 0 picks a free port")


class PrimarySettings(Section):
    """`[primary.<keyspace>]`: where scans with `validate` look up the documents of a keyspace (their meaning:
    docs/validate.md). The url may hold a password, and is never shown."""

    kind: Literal["sql", "topic"] = Field(
        description="`sql`: a database, through SQLAlchemy; `topic`: the keyspace's own topic"
    )
    url: SecretStr = Field(SecretStr(""), description="SQLAlchemy's URL of the database")
    table: str = Field("", description="table or view, with its schema before a dot if need be")
    id_column: str = Field("id", description="the column with the document id")
    document_column: str = Field("", description="the column with the whole document as JSON")
    columns: dict[str, str] = Field(
        default_factory=dict, description="instead of it: top-level field of the document -> its column"
    )
    nulls: Literal["null", "missing"] = Field("null", description="what a NULL of such a column is in JSON")
    offset_column: str = Field(
        "",
        description="the column with the Kafka offset that a row was written from, for a database that "
        "is fed from the topic",
    )
    partition_column: str = Field("", description="the column with the partition of that offset")
    position_query: str = Field(
        "", description="a query for (partition, next offset) of what the database has been fed with"
    )
    connections: int = Field(
        4, ge=1, le=64, description="to the primary, of each node: what validation may load it with"
    )
    connect_timeout_s: int = Field(3, ge=1, description="longest wait for a new connection")
    batch_ids: int = Field(1_000, ge=1, le=10_000, description="documents asked for at once")
    max_rows: int = Field(10_000, ge=1, description="rows of one validated page")
    wait_ms: int = Field(
        200, ge=0, description="how long a page waits for a primary that is behind some of its rows"
    )
    look_ahead: int = Field(
        20_000, ge=0, description="records past the snapshot that are read for newer versions (topic)"
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        sql = (self.url.get_secret_value(), self.table, self.document_column, self.columns)
        told = (self.offset_column, self.partition_column, self.position_query)
        if self.kind == "topic" and any((*sql, *told)):
            raise ValueError("kind `topic` takes no url, table or columns")
        if self.kind == "sql" and (not all(sql[:2]) or bool(sql[2]) == bool(sql[3])):
            raise ValueError("kind `sql` needs url, table, and either document_column or columns")
        if self.partition_column and not self.offset_column:
            raise ValueError("partition_column goes with offset_column")
        return self
