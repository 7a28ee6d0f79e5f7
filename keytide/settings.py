"""Every setting and every limit, with its reason: `keytide.toml`, overridden by `KEYTIDE_*` environment
variables (nested with two underscores, e.g. `KEYTIDE_INDEXER__PORT`), overridden by flags.

There is a limit on every queue, batch, page, lease and wait; they all live here (after TigerBeetle: put a
limit on everything).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

MIB = 1024 * 1024


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class KafkaSettings(BaseModel):
    """Where Kafka is; every other name in `[kafka]` passes through to the Kafka clients (SASL, TLS)."""

    model_config = ConfigDict(extra="allow")

    bootstrap: str = Field("127.0.0.1:9092", description="bootstrap servers, comma separated")

    def client(self, **overrides: Any) -> dict[str, Any]:
        """A librdkafka configuration: the pass-through settings, then `overrides` (underscores stand for
        dots)."""
        config: dict[str, Any] = {"bootstrap.servers": self.bootstrap}
        config.update(self.model_extra or {})
        config.update({name.replace("_", "."): value for name, value in overrides.items()})
        return config


class TopicSettings(_Section):
    replication_factor: int = Field(1, description="of Keytide's own topics; 3 on a real cluster")
    message_max_bytes: int = Field(32 * MIB, description="largest Kafka message in Keytide's own topics")
    part_bytes: int = Field(
        8 * MIB, description="messages larger than this are split (R20); well below message_max_bytes"
    )
    segment_target_bytes: int = Field(
        4 * MIB,
        description="a segment batch is cut near this size, to keep a slice's memory even",
    )
    queue_retention_s: int = Field(
        86_400,
        description="how long a mutation queue is kept for a node that is away; what no slice can need any "
        "more goes sooner (R34)",
    )


class ProjectorSettings(_Section):
    batch_documents: int = Field(
        10_000, description="documents per poll: one decode call, one message per slice"
    )
    linger_ms: int = Field(5, description="longest wait for a batch to fill when the stream is quiet")
    in_flight_batches: int = Field(
        8, description="polls sent and not yet acknowledged; bounds memory and what a reset resends"
    )
    commit_interval_ms: int = Field(
        1_000, description="between commits of acknowledged offsets; bounds what is resent after a crash"
    )
    heartbeat_ms: int = Field(250, description="empty segments and progress for every owned partition (R14)")
    session_timeout_ms: int = Field(
        10_000, description="after which a dead projector's partitions move to another"
    )
    queue_unavailable_s: int = Field(
        60, description="how long one unavailable queue partition may hold back a keyspace (R18)"
    )
    metrics_host: str = "127.0.0.1"
    metrics_port: int = Field(0, description="where Prometheus metrics are served; 0 serves none")


class IndexerSettings(_Section):
    host: str = "127.0.0.1"
    port: int = Field(8093, description="scan endpoint; 0 picks a free port")
    node_id: str = Field("", description="kept in the data folder when empty")
    slice_queue_documents: int = Field(
        400_000,
        description="documents a slice holds before it applies them unnumbered (R4)",
    )
    slice_queue_bytes: int = Field(48 * MIB, description="the same in bytes of messages held")
    node_queue_documents: int = Field(
        600_000, description="documents that all slices of a node hold together; each has an even share"
    )
    node_queue_bytes: int = Field(96 * MIB, description="the same in bytes: what keeps a node below 300 MB")
    snapshots_kept: int = Field(
        8, description="the ring of snapshots of each slice, beside the newest common one"
    )
    gap_limit_s: int = Field(
        60, description="how long a gap may stay unfilled before the slice stops and says so (R10)"
    )
    heartbeat_ms: int = Field(500, description="node heartbeats")
    delta_entries: int = Field(1_000_000, description="entries in a delta before it is folded into the base")
    delta_age_s: int = Field(
        30, description="a delta with anything in it is folded at this age, so that a restart replays little"
    )
    base_map_bytes: int = Field(1 << 38, description="address space of a base (sparse; not memory, not disk)")
    delta_map_bytes: int = Field(1 << 33, description="address space and most disk of a delta")
    undo_s: int = Field(
        3_600, description="how far back in time a base can step, fold by fold, when the source loses records"
    )
    undo_bytes: int = Field(1 << 30, description="disk for that, per slice; the oldest steps go first")
    scrub_interval_s: int = Field(
        3_600,
        description="between checks of each base against its checksums, beside the one at every opening",
    )
    check_mirror: bool = Field(
        False, description="check entries against the back index after every commit (tests; slow)"
    )


class CoordinatorSettings(_Section):
    host: str = "127.0.0.1"
    port: int = Field(8091, description="admin API and web page; 0 picks a free port")
    interval_ms: int = Field(10, description="shortest time between stability timestamps when there is news")
    heartbeat_ms: int = Field(
        200, description="a timestamp is issued at least this often, changed or not (R7)"
    )
    pacing_limit_ms: int = Field(
        2_000,
        description="longest wait for a live slice to hold the last timestamp before the next is issued",
    )
    lag_limit_ms: int = Field(
        5_000,
        description="a live slice that has lacked the newest timestamp for this long no longer holds the "
        "next ones back, until it has caught up",
    )
    trim_interval_s: int = Field(
        10, description="between deletions of what mutation queues need no more (R34)"
    )
    rebuild_wait_s: int = Field(
        5, description="slices that are lost within this time are rebuilt together, by one read of the source"
    )
    node_timeout_ms: int = Field(
        3_000, description="a node without a heartbeat for this long is not live and leaves pacing"
    )
    leader_timeout_ms: int = Field(
        3_000,
        description="a coordinator that stands by claims the cluster after this long without the leader",
    )
    request_timeout_s: int = Field(30, description="longest wait of an admin request for Kafka or a node")


class BuildSettings(_Section):
    spark_master: str = Field("local[*]", description="Spark master of backfills")
    driver_memory: str = Field("2g", description="heap of the Spark driver (and of local executors)")
    batch_documents: int = Field(
        2_000_000, description="documents per micro-batch: what a killed build does again at most"
    )
    chunk_bytes: int = Field(1 * MIB, description="size of a sorted chunk in the backfill queue")
    concurrent: int = Field(2, description="builds at once in the cluster")
    concurrent_per_node: int = Field(1, description="builds at once on one node")
    transaction_limit_s: int = Field(
        900, description="an open transaction below the load timestamp fails the build after this long (R24)"
    )
    restarts: int = Field(
        5,
        description="how often a dead Spark driver is started again before the build fails",
    )
    spark_options: dict[str, str] = Field(default_factory=dict, description="further Spark configuration")


class ScanSettings(_Section):
    default_limit: int = Field(1_000, description="rows per page when the request names no limit")
    max_limit: int = Field(100_000, description="rows per page at most")
    default_timeout_ms: int = 5_000
    max_timeout_ms: int = 120_000
    first_lease_s: int = Field(
        10,
        description="how long the token of a first page keeps its snapshot: few are ever used, and a kept "
        "snapshot keeps disk from being reused",
    )
    lease_s: int = Field(60, description="how long a page token keeps its snapshot after its last use")
    max_leases: int = Field(
        400,
        description="snapshots of one index that a node keeps for page tokens and holds at once; beyond it "
        "those go first that only gave first pages",
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
        "hundred bytes each, and in the answer there is no paging",
    )
    max_sort_rows: int = Field(
        100_000,
        ge=1,
        description="rows that a node sorts for one query whose order no index has: it holds all of them in "
        "memory, or as many as LIMIT and OFFSET name",
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
        description="bytes of keys and values that a stream reads at once, over all slices, and of changes "
        "that a tail collects: more makes streams hardly faster",
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
        description="how long a tail may be silent: proxies, and clients, take a connection for dead that is "
        "silent for a minute",
    )


class GatewaySettings(_Section):
    host: str = Field("127.0.0.1", description="where `keytide gateway` listens")
    port: int = Field(8092, description="its scan endpoint; 0 picks a free port")


class PrimarySettings(_Section):
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


class SecuritySettings(_Section):
    tokens: dict[str, list[str]] = Field(
        default_factory=dict, description="API token -> scopes (read, admin)"
    )
    tls_certificate: str = ""
    tls_key: str = ""


class Settings(BaseSettings):
    """All settings of one process. Build with `load_settings`."""

    model_config = SettingsConfigDict(
        env_prefix="KEYTIDE_",
        env_nested_delimiter="__",
        extra="ignore",
        hide_input_in_errors=True,  # which may hold passwords
    )

    cluster: str = Field("keytide", description="cluster name: the prefix of its topics")
    data_dir: Path = Field(Path("keytide-data"), description="where this machine's parts keep their data")
    kafka: KafkaSettings = KafkaSettings()  # type: ignore[call-arg]
    topics: TopicSettings = TopicSettings()  # type: ignore[call-arg]
    projector: ProjectorSettings = ProjectorSettings()  # type: ignore[call-arg]
    indexer: IndexerSettings = IndexerSettings()  # type: ignore[call-arg]
    coordinator: CoordinatorSettings = CoordinatorSettings()  # type: ignore[call-arg]
    build: BuildSettings = BuildSettings()  # type: ignore[call-arg]
    scan: ScanSettings = ScanSettings()  # type: ignore[call-arg]
    gateway: GatewaySettings = GatewaySettings()  # type: ignore[call-arg]
    primary: dict[str, PrimarySettings] = Field(
        default_factory=dict, description="keyspace -> where its documents are looked up by validated scans"
    )
    security: SecuritySettings = SecuritySettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = os.environ.get("KEYTIDE_CONFIG", "keytide.toml")
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=file)


def load_settings(**flags: Any) -> Settings:
    """Settings from file, environment and flags (flags are nested dictionaries; None values are left out)."""
    return Settings(**{name: value for name, value in flags.items() if value is not None})
