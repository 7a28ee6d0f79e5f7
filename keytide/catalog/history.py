"""What of the past of a keyspace still holds: its rollbacks, folded. Pure.

A keyspace's *incarnation* counts its rollbacks. Everything that carries one (segments, snapshots, commits,
stored slices) belongs to the history of that time; each later rollback has cut that history at a timestamp.
So what remains of incarnation j is what lies below every cut made after j (R30, R31). The newest incarnation
has no limit.

The cut is the same in every partition's eyes: the timestamp of the snapshot that was rolled back to. That is
a little more than was lost, and it keeps one rule in place of one per partition (docs/adr/0010).
"""

from __future__ import annotations

from collections.abc import Iterable

from keytide.catalog.catalog import Catalog
from keytide.catalog.records import RollbackRecord
from keytide.model.timestamp import Timestamp, smallest


class History:
    """The rollbacks of one keyspace. Immutable.

    Args:
        rollbacks: all of them, in any order.
        topic_id: of the topic at present, "" when unknown.
        incarnation: the keyspace's, when it is known apart from the rollbacks (it is never behind them).

    Attributes:
        incarnation: the newest.
        topic_id: of the newest.
    """

    __slots__ = ("_rollbacks", "incarnation", "topic_id")

    def __init__(
        self, rollbacks: Iterable[RollbackRecord] = (), topic_id: str = "", incarnation: int = 0
    ) -> None:
        self._rollbacks = tuple(sorted(rollbacks, key=lambda record: record.incarnation))
        self.incarnation = max([incarnation, *(record.incarnation for record in self._rollbacks)])
        self.topic_id = topic_id

    @classmethod
    def of(cls, catalog: Catalog, keyspace: str) -> History:
        """The history of a keyspace as the dictionary tells it."""
        record = catalog.keyspace(keyspace)
        if record is None:
            return cls()
        known = [one for one in catalog.rollbacks(keyspace) if one.incarnation <= record.incarnation]
        return cls(known, record.topic_id, record.incarnation)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and self._all() == other._all()

    def __hash__(self) -> int:
        return hash((self.incarnation, self.topic_id))

    def _all(self) -> tuple[object, ...]:
        return (self._rollbacks, self.incarnation, self.topic_id)

    @property
    def newest(self) -> RollbackRecord | None:
        """The last rollback, None when there was none."""
        return self._rollbacks[-1] if self._rollbacks else None

    def limit(self, incarnation: int) -> Timestamp | None:
        """Up to where what was done under `incarnation` still holds; None: without limit."""
        cuts = [record.timestamp for record in self._rollbacks if record.incarnation > incarnation]
        return smallest(cuts) if cuts else None

    def holds(self, timestamp: Timestamp, incarnation: int) -> bool:
        """Whether a state that reaches up to `timestamp`, made under `incarnation`, is still a state of this
        history."""
        limit = self.limit(incarnation)
        return limit is None or limit.covers(timestamp)

    def number_holds(self, number: int, incarnation: int) -> bool:
        """Whether a snapshot number that was issued under `incarnation` is not void."""
        return all(number <= record.number for record in self._rollbacks if record.incarnation > incarnation)

    def begins_anew(self, incarnation: int) -> bool:
        """Whether nothing at all holds of what was done under `incarnation` (the topic was made anew)."""
        limit = self.limit(incarnation)
        return limit is not None and not any(place.offset for place in limit.places.values())

    def on_lost_branch(self, partition: int, offset: int, epoch: int) -> bool:
        """Whether a record that ended at next offset `offset`, written under leader epoch `epoch`, was lost.
        False when the epoch is not known (-1)."""
        for record in self._rollbacks:
            parting = record.lost.get(partition)
            if parting is not None and offset > parting.offset and 0 <= epoch < parting.epoch:
                return True
        return False
