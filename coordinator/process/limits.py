"""The limits of the pure cores, from the settings."""

from __future__ import annotations

from coordinator.builds.registry import BuildLimits
from coordinator.core.limits import CoreLimits
from coordinator.core.slice_loads import LOOKS, LoadLimits
from coordinator.jobs.registry import JobLimits
from coordinator.statements.auto_split import AutoSplitLimits
from keytide.settings.settings import Settings


def limits_of(settings: Settings) -> tuple[CoreLimits, BuildLimits, LoadLimits, AutoSplitLimits]:
    """What the core and the builds obey, when a slice is hot, and when it is parted by itself."""
    core, build, verify = settings.coordinator, settings.build, settings.verify
    return (
        CoreLimits(
            interval_ms=core.interval_ms,
            heartbeat_ms=core.heartbeat_ms,
            pacing_limit_ms=core.pacing_limit_ms,
            lag_limit_ms=core.lag_limit_ms,
            trim_interval_ms=core.trim_interval_s * 1000,
            queue_retention_ms=settings.topics.queue_retention_s * 1000,
            queue_max_bytes=core.queue_max_bytes,
            kafka_disk_bytes=core.kafka_disk_free_bytes,
            queue_sizes=True,
            node_timeout_ms=core.node_timeout_ms,
            suspect_ms=core.suspect_ms,
            stale_limit_ms=core.stale_limit_ms,
            reserve=core.reserve,
            copies_per_node=core.copies_per_node,
            copy_after_ms=core.copy_after_s * 1000,
            # (Leases run a tenth longer than is promised.)
            leave_after_ms=max(core.leave_after_s * 1000, settings.scan.lease_s * 1100),
            newest_held=settings.indexer.snapshots_kept,
        ),
        BuildLimits(
            concurrent=build.concurrent,
            concurrent_per_node=build.concurrent_per_node,
            transaction_limit_ms=build.transaction_limit_s * 1000,
            restarts=build.restarts,
            rebuild_wait_ms=core.rebuild_wait_s * 1000,
            driver_disk_bytes=build.driver_disk_free_bytes,
            node_disk_bytes=build.node_disk_free_bytes,
            batches_ahead=build.batches_ahead,
            away_ms=int(build.kafka_away_s * 1000),
            verify=build.verify,
            default_replicas=core.default_replicas,
            seed_layouts=build.seed_layouts,
            jobs=JobLimits(
                concurrent=verify.concurrent,
                restarts=verify.restarts,
                interval_ms=verify.interval_s * 1000,
                kept=verify.kept,
                waiting=verify.waiting,
            ),
        ),
        LoadLimits(core.hot_after_s * 1000 // LOOKS, core.hot_rate, core.large_entries),
        AutoSplitLimits(
            look_ms=core.hot_after_s * 1000 // LOOKS,
            after_ms=core.auto_split_after_s * 1000,
            pause_ms=core.auto_split_pause_s * 1000,
            slices=core.auto_split_slices,
        ),
    )
