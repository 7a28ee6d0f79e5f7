"""Every setting and every limit, with its reason: `keytide.toml`, overridden by `KEYTIDE_*` environment
variables (nested with two underscores, e.g. `KEYTIDE_INDEXER__PORT`), overridden by flags.

There is a limit on every queue, batch, page, lease and wait; they all live here (after TigerBeetle: put a
limit on everything).
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from keytide.errors import ConfigurationError
from keytide.model.roles import ROLES, Role, listed_roles
from keytide.model.topics import cluster_name
from keytide.settings.builds import BuildSettings as BuildSettings
from keytide.settings.http import HttpSettings as HttpSettings
from keytide.settings.http import SecuritySettings as SecuritySettings
from keytide.settings.jobs import RepairSettings as RepairSettings
from keytide.settings.jobs import VerifySettings as VerifySettings
from keytide.settings.names import check_names, unfit
from keytide.settings.scans import GatewaySettings as GatewaySettings
from keytide.settings.scans import PrimarySettings as PrimarySettings
from keytide.settings.scans import ScanSettings as ScanSettings
from keytide.settings.scans import Section

MIB = 1024 * 1024
LONGEST_ZONE: Final = 40
"""Characters: tables show it."""
BACK_MS: Final = 1_000
"""Clients look this often whether a broker is back. librdkafka's own ten seconds are longer than whoever asks
for something waits for Kafka, and than the leader lets pass before it suspects who is not heard."""


class KafkaSettings(BaseModel):
    """Where Kafka is; every other name in `[kafka]` passes through to the Kafka clients (SASL, TLS)."""

    model_config = ConfigDict(extra="allow")

    bootstrap: str = Field("127.0.0.1:9092", description="bootstrap servers, comma separated")

    def client(self, **overrides: Any) -> dict[str, Any]:
        """A librdkafka configuration: ours, the pass-through settings, then `overrides` (underscores stand
        for dots)."""
        config: dict[str, Any] = {"bootstrap.servers": self.bootstrap, "reconnect.backoff.max.ms": BACK_MS}
        config.update(self.model_extra or {})
        config.update({name.replace("_", "."): value for name, value in overrides.items()})
        return config


class TopicSettings(Section):
    replication_factor: int = Field(
        1,
        description="of Keytide's own topics; 3 on a real cluster: 2 of the replicas must then have what "
        "counts as written (`min.insync.replicas`), so one broker may be away",
    )
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


class ProjectorSettings(Section):
    batch_documents: int = Field(
        10_000, description="documents per poll: one decode call, one message per slice"
    )
    linger_ms: int = Field(
        5, ge=0, le=1_000, description="longest wait for a batch to fill when the stream is quiet"
    )
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
    metrics_host: str = Field(default="127.0.0.1", description="where Prometheus metrics are served")
    metrics_port: int = Field(0, description="where Prometheus metrics are served; 0 serves none")


class IndexerSettings(Section):
    host: str = Field(default="127.0.0.1", description="where the scan endpoint listens")
    port: int = Field(8093, description="scan endpoint; 0 picks a free port")
    node_id: str = Field("", description="kept in the data folder when empty")
    zone: str = Field(
        "",
        description="what fails together with other nodes of the same zone: a rack, a data center; copies of "
        "a slice lie in different zones, and a scan reads one in its node's where there is one; empty: the "
        "node fails alone",
    )
    roles: Annotated[tuple[Role, ...], NoDecode] = Field(
        ROLES,
        description="what the node is for: `index` (it holds slices), `scan` (it answers scans of clients); "
        "where scans and the writing of slices take one another's time, nodes of their own for each. In the "
        "environment with commas between them",
    )
    scan_processes: int = Field(
        0,
        ge=0,
        le=64,
        description="processes beside the node's own that answer scans and counts of its slices, on the same "
        "port, so that scans and the writing of slices do not take one another's time where there are cores "
        "for both; Linux only. 0: the node answers alone",
    )
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
        30,
        description="a delta with anything in it is folded at this age, so that a restart replays little; "
        "each slice has an age of its own, up to a quarter less, so that they fold one after the other",
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
    doubt_pause_s: int = Field(
        60,
        ge=0,
        description="between checks of a slice because what a read of it got contradicted itself: a check "
        "reads the whole slice, and whoever may ask could ask for it again and again",
    )
    stall_s: float = Field(
        60.0,
        gt=0,
        description="how long a fold worker, or a process that examines a base, may show no progress before "
        "it is ended and another takes its place; a slow one that comes further, or that waits for the disk, "
        "is left alone",
    )
    copy_rate: int = Field(
        0,
        ge=0,
        description="bytes per second that copies of slices are filled with from other nodes, all together "
        "but for those whose job has a rate (`keytide job throttle`); 0: no limit",
    )
    unique_keys_listed: int = Field(
        1_000,
        description="keys of a UNIQUE index with several documents that each slice lists; further ones are "
        "counted once a minute: memory",
    )
    unique_documents_listed: int = Field(
        100, description="documents listed of each such key; a scan of the key shows the others"
    )
    check_mirror_s: float | None = Field(
        None,
        ge=0,
        description="check entries against the back index after a commit, of each slice once in so many "
        "seconds at most; never when null (tests; slow)",
    )

    @field_validator("zone")
    @classmethod
    def _is_short(cls, zone: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9._-]*+", zone) or len(zone) > LONGEST_ZONE:
            raise ValueError(f"a zone has letters, digits, . _ and -, at most {LONGEST_ZONE} characters")
        return zone

    @field_validator("roles", mode="before")
    @classmethod
    def _are_listed(cls, roles: object) -> tuple[Role, ...]:
        return listed_roles(roles)


class CoordinatorSettings(Section):
    host: str = Field(default="127.0.0.1", description="where the admin API and the web page listen")
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
    queue_max_bytes: int = Field(
        0,
        ge=0,
        description="bytes of its slice's queue in Kafka that one copy may hold back beyond another one that "
        "holds what is published; past it the copy is taken out and filled anew. Much more than a node reads "
        "between two folds (indexer.delta_age_s), and less than Kafka has room for; 0: no limit but that of "
        "kafka_disk_free_bytes",
    )
    kafka_disk_free_bytes: int = Field(
        268_435_456,
        ge=0,
        description="while less is free on a disk of Kafka that has topics of the cluster, builds pause, and "
        "no copy of a slice whose queue lies there is begun; one that keeps a quarter as much there alone is "
        "given up, if it is being filled or its node is silent for half a minute. Kafka says it from 3.3 on, "
        "to a user that may DESCRIBE the cluster; 0: not looked at",
    )
    reserve: int = Field(
        262_144,
        ge=2,
        description="offsets of a source partition that timestamps may advance before the dictionary is "
        "written again; so many may have to be read again when the control topic has expired",
    )
    rebuild_wait_s: int = Field(
        5, description="slices that are lost within this time are rebuilt together, by one read of the source"
    )
    default_replicas: int = Field(
        0,
        ge=0,
        le=3,
        description="copies of each slice beside the first, of a CREATE INDEX that does not say: scans go on "
        "when a node dies, and each copy costs what the first does",
    )
    copies_per_node: int = Field(
        2,
        ge=1,
        description="copies of slices that are filled at once from or on one node; each reads a whole slice, "
        "and takes disk and network from what the node serves",
    )
    copy_after_s: int = Field(
        300,
        ge=10,
        description="copies on a node that is silent for longer are filled on other nodes; on one that comes "
        "back before they have only to catch up",
    )
    leave_after_s: int = Field(
        900,
        ge=1,
        description="a copy whose slice was moved goes when nobody reads from it any more, and after so long "
        "at the latest, but not before a page token that was given last has run out (scan.lease_s)",
    )
    hot_after_s: int = Field(
        120,
        ge=4,
        description="a slice is told of when it has had much more than the others of its index for so long; "
        "a burst is over by then",
    )
    hot_rate: int = Field(
        100,
        ge=1,
        description="entries/s that are written to a slice, or times/s that scans read it, below which it is "
        "not told of: any node does so much on the side",
    )
    large_entries: int = Field(
        1_000_000, ge=1, description="entries that a slice holds, below which it is not told of as large"
    )
    auto_split_after_s: int = Field(
        300,
        ge=0,
        description="an index with auto_split gets more slices when one has been told of as hot for so long; "
        "each time a build reads the whole source",
    )
    auto_split_pause_s: int = Field(
        3_600,
        ge=1,
        description="from one time that an index gets more slices by itself to the next: by then it is seen "
        "whether the last time has helped",
    )
    auto_split_slices: int = Field(
        64,
        ge=1,
        le=1024,
        description="an index gets no more slices than these by itself; mostly, each hears every document",
    )
    node_timeout_ms: int = Field(
        3_000, description="a node without a heartbeat for this long is not live and leaves pacing"
    )
    suspect_ms: int = Field(
        2_000, ge=100, description="health tells of who says nothing for this long: four heartbeats of nodes"
    )
    stale_limit_ms: int = Field(
        10_000, ge=100, description="health tells of snapshots further behind: a burst of writes is over"
    )
    leader_timeout_ms: int = Field(
        3_000,
        description="a coordinator that stands by claims the cluster after this long without the leader",
    )
    request_timeout_s: int = Field(30, description="longest wait of an admin request for Kafka or a node")


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
    verify: VerifySettings = VerifySettings()  # type: ignore[call-arg]
    repair: RepairSettings = RepairSettings()  # type: ignore[call-arg]
    scan: ScanSettings = ScanSettings()  # type: ignore[call-arg]
    http: HttpSettings = HttpSettings()  # type: ignore[call-arg]
    gateway: GatewaySettings = GatewaySettings()  # type: ignore[call-arg]
    primary: dict[str, PrimarySettings] = Field(
        default_factory=dict, description="keyspace -> where its documents are looked up by validated scans"
    )
    security: SecuritySettings = SecuritySettings()

    @field_validator("cluster")
    @classmethod
    def _names_topics(cls, name: str) -> str:
        return cluster_name(name)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=_file())


def load_settings(**flags: Any) -> Settings:
    """Settings from file, environment and flags (flags are nested dictionaries; None values are left out).

    Raises:
        ConfigurationError: a name is not known, or a value does not fit; says which.
    """
    try:
        settings = Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        raise unfit(error, Settings.model_fields) from None
    except SettingsError as error:  # lists in the environment are JSON; it names the section
        raise ConfigurationError(
            f"{error}: it is no JSON",
            next_step='write a list as ["one", "two"], and names as {"name": "value"}',
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{_file()} is no TOML: {error}", next_step="correct it") from error
    check_names(Path(_file()), Settings.model_fields)
    return settings


def _file() -> str:
    return os.environ.get("KEYTIDE_CONFIG", "keytide.toml")
