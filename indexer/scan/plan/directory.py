"""What scans look up: indexes in the system dictionary, worked out once per change of it and not once per
scan; the newest snapshot of one; where to read its slices."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from indexer.scan.peer.messages import TIP
from indexer.scan.plan.errors import IndexNotReadyError, PageSnapshotGoneError, UnknownIndexError
from indexer.scan.plan.selection import Shape, Stamp, check_branches, unmet
from indexer.scan.plan.tokens import InvalidTokenError, Seen, check_history
from indexer.scan.request.request import Moment
from indexer.view import NodeView
from keytide.catalog.catalog import Catalog
from keytide.catalog.history import History
from keytide.catalog.records import BuildRecord, IndexRecord, KeyspaceRecord, index_number
from keytide.errors import HistoryChangedError
from keytide.model.hints import did_you_mean
from keytide.model.timestamp import Timestamp
from keytide.process.clock import wall_ms


@dataclass(frozen=True, slots=True)
class Scannable:
    """A READY index with what a scan of it needs.

    Attributes:
        placement: slice -> the nodes that hold it.
        leaving: slice -> the nodes whose copies of it count no longer, and still serve.
        partitions, history: of its keyspace.
        rebuilds: slice -> the build that is to fill it anew, alone, while the others serve.
        out: those of them that the build has begun to fill: they serve nothing until it is READY.
    """

    id: str
    name: str
    keyspace: str
    shape: Shape
    placement: list[list[str]]
    partitions: int
    history: History
    rebuilds: dict[int, BuildRecord] = field(default_factory=dict)
    out: frozenset[int] = frozenset()
    leaving: dict[int, list[str]] = field(default_factory=dict)

    @property
    def incarnation(self) -> int:
        """How often the keyspace was rolled back."""
        return self.history.incarnation

    def check_index(self, of_index: str) -> None:
        """Raise `InvalidTokenError` unless a token is of this index."""
        if of_index != self.id:
            raise InvalidTokenError(
                f"the token belongs to another index than {self.name}",
                next_step="start the scan again, without the token",
            )

    def check_snapshot(self, of_index: str, number: int, incarnation: int, seen: Seen) -> None:
        """Raise unless the snapshot that a token names is of this index and of the history that holds now."""
        self.check_index(of_index)
        check_history(seen.get(self.keyspace), self.history)
        if number == TIP:
            void = incarnation < self.incarnation
        else:
            void = not self.history.number_holds(number, incarnation)
        if void:
            raise HistoryChangedError(
                "the source lost records, and what this scan reads was rolled back",
                next_step="start the scan again",
            )
        if incarnation > self.incarnation:
            raise IndexNotReadyError(
                "this node has not read of the keyspace's rollback yet", next_step="try again in a moment"
            )

    def without(self, slices: Iterable[int], reason: str) -> IndexNotReadyError:
        """The error for a scan that needs slices whose data is lost.

        Args:
            slices: at least one.
            reason: what happened to them, "" when it is not known here.
        """
        numbers = sorted(slices)
        builds = {
            self.rebuilds[number].id: self.rebuilds[number] for number in numbers if number in self.rebuilds
        }
        several = len(numbers) > 1
        what = f"slice{'s' if several else ''} {', '.join(map(str, numbers))} of {self.name}"
        story = f"{what} {'have' if several else 'has'} lost {'their' if several else 'its'} data"
        story += f" ({reason})" if reason else ""
        failed = [build for build in builds.values() if build.state in ("FAILED", "CANCELLED")]
        if failed:
            story += f"; build {failed[0].id}, which was to bring it back, is {failed[0].state}"
            story += f": {failed[0].error}" if failed[0].error else ""
            step = f"it is tried again by itself; see `keytide index show {self.name}`"
        elif builds:
            story += f"; build {', '.join(builds)} brings it back"
            step = (
                f"wait for it (`keytide build show {next(iter(builds))}`); scans of other slices are answered"
            )
        else:
            step = f"wait: a rebuild begins by itself (`keytide index show {self.name}`)"
        return IndexNotReadyError(
            story,
            next_step=step,
            build=next(iter(builds), None),
            state="READY",
            slices=numbers,
            reason=reason,
        )


class IndexDirectory:
    """Indexes by name, as the node's catalog has them now.

    Args:
        view: the node.
        wall: the machine's clock, ms.
        choose: one of several replicas.
    """

    def __init__(
        self,
        view: NodeView,
        wall: Callable[[], int] = wall_ms,
        choose: Callable[[Sequence[str]], str] = random.choice,
    ) -> None:
        self._view = view
        self._wall = wall
        self._choose = choose
        self._catalog: Catalog | None = None
        self._offset = -1
        self._by_name: dict[str, IndexRecord] = {}
        self._names: dict[str, str] = {}
        self._ready: dict[str, Scannable] = {}
        self._replaced: dict[str, Scannable] = {}
        """By id, layouts that others have replaced, and that still serve who names them."""
        self._histories: dict[str, History] = {}
        self._near: frozenset[str] = frozenset()
        """Nodes of this one's zone."""
        self._secret = b""

    def index(self, name: str, layout: str = "") -> Scannable:
        """The READY index of this name.

        Args:
            layout: id of the one to read if it was replaced and still serves (R45): what a token names.

        Raises:
            UnknownIndexError: no index has it.
            IndexNotReadyError: it cannot be scanned yet, or not any more.
        """
        self._refresh()
        replaced = self._replaced.get(layout)
        if replaced is not None and replaced.name == name:
            return replaced
        scannable = self._ready.get(name)
        if scannable is not None:
            if layout and layout != scannable.id:
                self._check_layout(scannable, layout)
            return scannable
        record = self._by_name.get(name)
        if record is None:
            self.secret()  # a node that has just started knows no name at all: that is not 404
            known = ", ".join(sorted(self._by_name)) or "none"
            raise UnknownIndexError(
                f"there is no index {name} (indexes: {known})",
                next_step=did_you_mean(name, self._by_name, "see `keytide index list`"),
            )
        if record.state == "READY":
            raise IndexNotReadyError(
                f"this node has not read all of the metadata of index {name} yet",
                next_step="try again in a moment",
            )
        next_steps = {
            "FAILED": f"build it again: `keytide index build {name}`",
            "DEFERRED": f"BUILD INDEX ON {record.keyspace} ({name})",
            "PAUSED": "resume its build (`keytide build list`)",
        }
        raise IndexNotReadyError(
            f"index {name} is {record.state}{': ' + record.reason if record.reason else ''}",
            next_step=next_steps.get(record.state, "wait for its build (`keytide build list`)"),
            build=record.build,
            state=record.state,
        )

    def layout(self, id_: str) -> Scannable | None:
        """What can be read now under an id, whatever its name: the index that bears one, or a layout that was
        replaced and still serves (R45). None when it is gone, or cannot be read."""
        self._refresh()
        bearer = self._ready.get(self._names.get(id_, ""))
        return bearer if bearer is not None and bearer.id == id_ else self._replaced.get(id_)

    def _check_layout(self, index: Scannable, layout: str) -> None:
        """See what became of the layout that a token names, which is not the one that its name stands for.

        Raises:
            IndexNotReadyError: this node has not read yet that it is READY.
            PageSnapshotGoneError: it is gone.
        """
        record = self._view.catalog().index(layout)
        unread = record is None and index_number(layout) > index_number(index.id)
        if unread or (record is not None and record.state in ("DEFERRED", "BUILDING", "PAUSED")):
            raise IndexNotReadyError(
                f"this node has not read yet that {index.name} was replaced",
                next_step="try again in a moment",
                state="BUILDING",
            )
        if record is None or record.state == "DROPPING":
            raise PageSnapshotGoneError(
                f"what the token names is gone: index {index.name} was replaced, or dropped and made again",
                next_step="start the scan again, without the token",
            )

    def name(self, index: Scannable) -> str:
        """The name that an index has now; its last one when it is gone."""
        self._refresh()
        return self._names.get(index.id, index.name)

    def successor(self, index: Scannable) -> Scannable | None:
        """The layout that has taken over the name of one, if it was made of its slices (R44) and has all its
        own: under a number that both hold the same entries lie in both. What was built from the source may
        know more, or less, and slices that were rebuilt since come from there."""
        name = self.name(index)
        now = self._ready.get(name)
        if now is None or now.id == index.id:
            return None
        catalog = self._view.catalog()
        record = catalog.index(now.id)
        if record is None or record.build is None or record.slice_builds:
            return None
        build = catalog.build(record.build)
        return now if build is not None and build.seed == index.id else None

    def again(self, index: Scannable) -> Scannable:
        """The same index as the catalog has it now, for who has named none of its layouts.

        Raises:
            UnknownIndexError, IndexNotReadyError: it is gone; another one has its name, or it is not READY.
        """
        with suppress(PageSnapshotGoneError):
            if (now := self.index(self.name(index), index.id)).id == index.id:
                return now
        story = f"index {index.name} was replaced, or dropped and made again, meanwhile"
        raise IndexNotReadyError(story, next_step="try again")

    def newest_stamp(
        self, index: Scannable, moment: Moment, seen: Seen, at_least: dict[int, int]
    ) -> tuple[Stamp | None, str | None]:
        """The newest published snapshot (of a tip scan, none), and what it lacks for a request.

        Args:
            at_least: from `demanded_offsets`.

        Raises:
            HistoryChangedError: what was seen or is demanded was rolled back.
        """
        of_keyspace = seen.get(index.keyspace)
        check_history(of_keyspace, index.history)
        check_branches(moment.at_least, index.history)
        if moment.consistency == "tip":
            behind = of_keyspace is not None and of_keyspace[1] > index.incarnation
            lacking = "this node to read of a rollback that the session has seen" if behind else None
            return Stamp(TIP, index.incarnation, Timestamp(), 0), lacking
        number = self._view.published(index.id)
        known = None if number is None else self._view.stamp(index.keyspace, number)
        stamp = None if number is None or known is None else Stamp(number, *known)
        return stamp, unmet(stamp, moment, of_keyspace, at_least, index.incarnation, self._wall())

    def replica(self, replicas: list[str], without: set[str] | None = None) -> str:
        """Where to read a slice: here if a replica is here, else at one that is known, of this node's zone if
        there is one; at those to do without only if no other is left."""
        me = self._view.node_id
        candidates = self.candidates(replicas, without) or replicas
        if me in candidates:
            return me
        return self._choose([node for node in candidates if node in self._near] or candidates)

    def others(self, placement: Sequence[list[str]], nodes: Mapping[int, str]) -> dict[int, list[str]]:
        """Slice -> its replicas beside those where slices are read, of slices that have any."""
        return {
            number: [one for one in placement[number] if one != node]
            for number, node in nodes.items()
            if len(placement[number]) > 1
        }

    def candidates(self, replicas: list[str], without: set[str] | None) -> list[str]:
        """The replicas that are known, but for those to do without."""
        me = self._view.node_id
        return [
            node
            for node in replicas
            if not (without and node in without) and (node == me or self._view.node_url(node) is not None)
        ]

    def history(self, keyspace: str) -> History:
        """The rollbacks of a keyspace, as far as this node knows."""
        self._refresh()
        return self._histories.get(keyspace) or History()

    def secret(self) -> bytes:
        """What tokens are signed with.

        Raises:
            IndexNotReadyError: the node has not read the cluster's record yet.
        """
        self._refresh()
        if not self._secret:
            raise IndexNotReadyError(
                "this node has not read the cluster's metadata yet", next_step="try again in a moment"
            )
        return self._secret

    def _refresh(self) -> None:
        catalog = self._view.catalog()
        if catalog is self._catalog and catalog.offset == self._offset:
            return
        offset = catalog.offset
        keyspaces = {record.name: record for record in catalog.keyspaces()}
        records = [record for record in catalog.indexes() if record.state != "DROPPING"]
        # As Catalog.index_by_name: of two with one name (one is being renamed) the first counts.
        self._by_name = {one.name: one for one in reversed(records) if catalog.bears_name(one)}
        self._names = {record.id: record.name for record in records}
        self._histories = {name: History.of(catalog, name) for name in keyspaces}
        rebuilds = _rebuilds(catalog)
        ready = [
            _scannable(
                record,
                keyspaces[record.keyspace],
                self._histories[record.keyspace],
                rebuilds.get(record.id, {}),
                catalog,
            )
            for record in records
            if record.state == "READY" and record.keyspace in keyspaces and _is_placed(record)
        ]
        bearers = {record.id for record in self._by_name.values()}
        self._ready = {one.name: one for one in ready if one.id in bearers}
        self._replaced = {one.id: one for one in ready if one.id not in bearers}
        zones = catalog.zones()
        mine = zones.get(self._view.node_id)
        self._near = frozenset(node for node, zone in zones.items() if zone == mine)
        self._secret = bytes.fromhex(catalog.secret)
        self._catalog, self._offset = catalog, offset


def _is_placed(record: IndexRecord) -> bool:
    return len(record.placement) == record.slices and all(record.placement)


def _rebuilds(catalog: Catalog) -> dict[str, dict[int, BuildRecord]]:
    """Index id -> slice -> the newest rebuild of it that has not succeeded."""
    found: dict[str, dict[int, BuildRecord]] = {}
    for build in sorted(catalog.builds(), key=lambda one: one.started_at):
        for index, slices in build.slices.items():
            for number in slices:
                if build.state == "READY":
                    found.get(index, {}).pop(number, None)
                else:
                    found.setdefault(index, {})[number] = build
    return found


def _scannable(
    record: IndexRecord,
    keyspace: KeyspaceRecord,
    history: History,
    rebuilds: dict[int, BuildRecord],
    catalog: Catalog,
) -> Scannable:
    out = {
        number
        for number, name in record.slice_builds.items()
        if (build := catalog.build(name)) is not None and build.state != "READY"
    }
    return Scannable(
        record.id,
        record.name,
        record.keyspace,
        Shape.of(record.definition, record.splits),
        record.placement,
        keyspace.partitions,
        history,
        rebuilds,
        frozenset(out),
        {number: list(nodes) for number, nodes in record.leaving.items()},
    )


def rebuilding(catalog: Catalog, index: str, slice_number: int) -> str:
    """The build that fills a single slice of a READY index and is not over, "" when there is none: the slice
    serves nothing."""
    record = catalog.index(index)
    name = record.slice_builds.get(slice_number, "") if record is not None else ""
    build = catalog.build(name) if name else None
    return name if build is not None and build.state != "READY" else ""
