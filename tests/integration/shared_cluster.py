"""One cluster of two nodes for the files that neither kill nor reconfigure its parts: its start takes twenty
seconds of processor time, and each of them needs no more of it than a READY index of its own.

Files name their topics and indexes as no other does, and `shared_world` (`conftest.py`) drops them at the end
of each file. Idle, a cluster still takes a fifth of a core from what else is tried, so it ends when the next
test does not use it; such files follow one another (`LONGEST_FIRST` in `tests/conftest.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from deploy.cluster import LocalCluster
from tests.waiting import wait_for

SETTINGS: Final = {
    "KEYTIDE_BUILD__BATCH_DOCUMENTS": "2000",
    "KEYTIDE_BUILD__DRIVER_MEMORY": "1g",
    "KEYTIDE_BUILD__NICE": "0",
    "KEYTIDE_BUILD__SPARK_MASTER": "local[2]",
    "KEYTIDE_BUILD__VERIFY": "false",
    "KEYTIDE_INDEXER__CHECK_MIRROR_S": "30",
    "KEYTIDE_INDEXER__DELTA_ENTRIES": "2000",  # folds while it is read
    "KEYTIDE_INDEXER__DELTA_AGE_S": "2",
    # As long as a client waits: nobody fails here, but for seconds a node may get no processor.
    "KEYTIDE_SCAN__DEFAULT_TIMEOUT_MS": "20000",
}


class SharedCluster:
    """A cluster that is started when it is asked for, again and again.

    Args:
        kafka: bootstrap servers of a broker that outlives it.
        folder: takes the data folder of each start.
    """

    def __init__(self, kafka: str, folder: Path) -> None:
        self._kafka, self._folder = kafka, folder
        self._cluster: LocalCluster | None = None
        self._starts = 0

    def running(self) -> LocalCluster:
        """The cluster, with both nodes live; started, if it is not running."""
        if self._cluster is None:
            self._starts += 1
            name = f"shared-{self._starts}"
            cluster = LocalCluster(
                self._folder / name, kafka=self._kafka, name=name, nodes=2, settings=SETTINGS
            )
            self._cluster = cluster.start()
        # A node that is not heard, on a machine that is busy, would get no slice of what is created now.
        wait_for(self._cluster.nodes_live, "all nodes are live")
        return self._cluster

    def stop(self) -> None:
        """End it; a running one is another one then."""
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None
