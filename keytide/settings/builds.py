"""Settings of builds, with their reasons (`keytide.settings.settings` has the others)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from keytide.settings.scans import Section

MIB = 1024 * 1024


class BuildSettings(Section):
    spark_master: str = Field("local[*]", description="Spark master of backfills")
    driver_memory: str = Field("2g", description="heap of the Spark driver (and of local executors)")
    local_documents: int = Field(
        200_000,
        ge=0,
        description="a build with no more documents left to read (a partition counts as a thousand) is read "
        "by its driver itself: Spark would take longer to start; 0: always by Spark",
    )
    local_bytes: int = Field(
        256 * MIB,
        ge=0,
        description="what such a driver may hold of a micro-batch's sorted entries, about half of the memory "
        "that it takes; what is more goes to the disk, by Spark; 0: any number",
    )
    batch_documents: int = Field(
        2_000_000, ge=1, description="documents per micro-batch: what a killed build does again at most"
    )
    batch_least_documents: int = Field(
        1_000,
        ge=1,
        description="the same where drivers die before one is done: each that does has the next begin "
        "with an eighth, down to this",
    )
    batch_seconds: float = Field(
        30.0,
        gt=0,
        description="how long a micro-batch should take after the first, as fast as that was: the time "
        "that a fault costs a build",
    )
    kafka_away_s: float = Field(
        60.0,
        gt=0,
        description="a build pauses when its source cannot be looked at for this long; shorter, its driver "
        "sits it out, for Spark takes long to start (and ends itself after twice that)",
    )
    chunk_bytes: int = Field(1 * MIB, description="size of a sorted chunk in the backfill queue")
    concurrent: int = Field(2, description="builds at once in the cluster")
    concurrent_per_node: int = Field(1, description="builds at once on one node")
    transaction_limit_s: int = Field(
        900, description="an open transaction below the load timestamp fails the build after this long (R24)"
    )
    restarts: int = Field(
        5,
        description="how often a dead Spark driver is started again before the build pauses, for longer and "
        "longer; how often a build that lost its footing begins again before it fails",
    )
    nice: int = Field(
        15,
        ge=0,
        le=19,
        description="how much a driver, with all that it starts, stands back behind other processes of its "
        "machine: with it live indexing keeps its rate. Among processes of one session or service only, as "
        "Linux does it: where coordinator and nodes are services of their own, give the coordinator's a "
        "smaller `CPUWeight`",
    )
    driver_in_waiting: bool = Field(
        True,
        description="the coordinator that leads has a process wait that has loaded what a driver needs "
        "(about 60 MB), so that builds, verifications and repairs begin a second sooner; off: it is started "
        "when it is needed",
    )
    seed_layouts: bool = Field(
        True,
        description="new layouts of an index begin with the slices of the old one, where those hold what is "
        "needed; off: they are always built from the source",
    )
    rebuild_nice: int = Field(
        5,
        ge=0,
        le=19,
        description="the same for the driver of a rebuild: while it works a slice is out of service",
    )
    driver_disk_free_bytes: int = Field(
        256 * MIB,
        ge=64 * MIB,
        description="builds pause while less is free on the disk of the drivers' shuffle files",
    )
    node_disk_free_bytes: int = Field(
        512 * MIB,
        ge=0,
        description="a build pauses while less is free on a node that it fills slices on: live slices need "
        "the rest",
    )
    batches_ahead: int = Field(
        10,
        ge=2,
        description="a build pauses while a slice has more micro-batches to load: backfill queues would grow "
        "for ever before a slow disk",
    )
    sample_documents: int = Field(
        100_000,
        ge=100,
        le=2_000_000,
        description="documents read for splits of RANGE indexes: more, and slices are more even",
    )
    verify: bool | Literal["full"] = Field(
        True,
        description="indexes are READY only when their slices store what was projected, by sums; where these "
        "say nothing, when a second read of the source found nothing wrong; `full`: always by a second read",
    )
    spark_options: dict[str, str] = Field(default_factory=dict, description="further Spark configuration")
    jars: list[str] = Field(
        default_factory=list,
        description="further jars for Spark, beside its Kafka connector: JDBC drivers of tables that builds "
        "begin with",
    )
    worker_python: str = Field(
        "",
        description="path of Python on the machines of a Spark cluster, of the same version as the "
        "coordinator's; empty: the path of the coordinator's",
    )
    worker_path: str = Field(
        "",
        description="folders on the machines of a Spark cluster that Keytide's packages are in, where that "
        "Python does not have them installed; empty: the coordinator's",
    )
    origin_paths: list[str] = Field(
        default_factory=list,
        description="files and folders that builds may begin with tables of, beside the data folder: they "
        "are read with the coordinator's rights",
    )
    origin_urls: list[str] = Field(
        default_factory=list,
        description="addresses that builds may begin with tables of: those of databases (`jdbc:`) as they "
        "stand, others with what is below them",
    )
    origin_options: dict[str, str] = Field(
        default_factory=dict,
        description="options of Spark's reader that every table gets that a build begins with: the place for "
        "passwords, for what a request names is in the metadata for all to read",
    )
