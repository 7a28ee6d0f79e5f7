"""Parts of a local cluster that are to be struck at a named place in their code."""

from __future__ import annotations

from deploy.cluster import LocalCluster


def arm(cluster: LocalCluster, name: str, point: str) -> None:
    """From its next start on, a part ends or waits at a named place in its code
    (`keytide.process.sync_points`), and what it starts itself (fold worker, Spark driver) does; "" disarms
    it."""
    environment = cluster.services[name].env or {}
    environment.pop("KEYTIDE_SYNC_POINT", None)
    if point:
        environment["KEYTIDE_SYNC_POINT"] = point
