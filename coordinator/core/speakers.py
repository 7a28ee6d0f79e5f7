"""Who speaks which version of the protocol (`keytide.model.protocol`), as the leader has heard it. Pure.

Theory of operation. A version may be used when everybody who is expected speaks it (R52): the nodes that the
dictionary names, live or not (each by what it last said), without those that are drained and gone; the
projectors that were last heard of the partitions which are read; the drivers of builds and jobs under way. A
projector that this leader has not heard yet is in no record, and not counted; nor are gateways, which report
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from keytide.catalog.catalog import Catalog
from keytide.catalog.records import BuildRecord, JobRecord
from keytide.errors import CallerError
from keytide.model.words import few
from keytide.wire.messages import BuildProgress, JobProgress

_ENDED: Final = frozenset({"READY", "DONE", "FAILED", "CANCELLED"})
"""States of builds and jobs that nothing leads on from."""
_OVER: Final = frozenset({"PASSED", "FAILED", "DONE"})
"""What a driver says last."""
_NAMED: Final = 5


class UpgradeNeededError(CallerError):
    """Somebody does not speak the version of the protocol that this needs."""

    problem_type = "upgrade-needed"
    status = 409


class Speaker(NamedTuple):
    """One process, as people call it, and up to which version it speaks."""

    name: str
    protocol: int


class Speakers:
    """Everybody who is expected.

    Args:
        live: the nodes that are live.
        projectors: those that were last heard of the partitions which are read.
    """

    def __init__(
        self,
        live: Callable[[], Iterable[str]] = tuple,
        projectors: Callable[[], Iterable[Speaker]] = tuple,
    ) -> None:
        self._live = live
        self._projectors = projectors
        self._drivers: dict[str, int] = {}

    def driver(self, report: BuildProgress | JobProgress) -> None:
        """A driver has reported."""
        name = f"build/{report.build}" if isinstance(report, BuildProgress) else f"job/{report.job}"
        if report.state in _OVER:
            self._drivers.pop(name, None)
        else:
            self._drivers[name] = report.protocol

    def nodes(self, catalog: Catalog) -> list[Speaker]:
        """The nodes that are expected, by name."""
        live = set(self._live())
        return [
            Speaker(f"node {one.id}", one.protocol)
            for one in catalog.nodes()
            if not one.drained_at or one.id in live
        ]

    def others(self, catalog: Catalog) -> list[Speaker]:
        """The projectors and drivers, by name. The driver of what is gone is forgotten."""
        self._drivers = {key: said for key, said in self._drivers.items() if _under_way(catalog, key)}
        drivers = [
            Speaker(f"the driver of {key.replace('/', ' ')}", said) for key, said in self._drivers.items()
        ]
        return sorted({*self._projectors(), *drivers})

    def behind(self, catalog: Catalog, version: int, without: str = "") -> list[Speaker]:
        """Those who do not speak a version.

        Args:
            without: a node that counts only while it is live, as if it were drained.
        """
        gone = f"node {without}" if without and without not in set(self._live()) else ""
        return [
            one
            for one in (*self.nodes(catalog), *self.others(catalog))
            if one.protocol < version and one.name != gone
        ]

    def check(self, catalog: Catalog, version: int, what: str, without: str = "") -> None:
        """See that a version may be used.

        Args:
            what: needs it, in words.
            without: as in `behind`.

        Raises:
            UpgradeNeededError: somebody does not speak it.
        """
        behind = self.behind(catalog, version, without)
        if behind:
            raise UpgradeNeededError(
                f"{what} needs version {version} of the protocol, which not everybody speaks: {told(behind)}",
                next_step="upgrade them, and the gateways, which nobody hears; drain nodes that are gone",
            )


def told(speakers: Iterable[Speaker]) -> str:
    """Who speaks what, in words."""
    return few((f"{one.name} speaks {one.protocol}" for one in speakers), _NAMED)


def _under_way(catalog: Catalog, key: str) -> bool:
    record = catalog.records.get(key)
    return isinstance(record, BuildRecord | JobRecord) and record.state not in _ENDED
