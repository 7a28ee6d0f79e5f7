"""Things that go through states, builds and jobs: their records, what is known beside, and the only way to
change a state. Pure.

Each is a record in the metadata topic (what must survive) and a *run* (what this coordinator knows of it
beside). Every change of state goes through a table of transitions; anything else is our bug.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from msgspec.structs import replace

from coordinator.catalog.dictionary import Dictionary
from keytide.catalog.records import BuildRecord, IndexRecord, JobRecord
from keytide.errors import CallerError, invariant

_Record = TypeVar("_Record", BuildRecord, JobRecord)
_Run = TypeVar("_Run")
_State = TypeVar("_State", bound=str)

Transitions = Mapping[_State, Mapping[str, _State]]
"""State -> action -> the state that it leads to; none leads on from a final one."""


def final(transitions: Transitions[Any]) -> frozenset[str]:
    """The states that nothing leads on from."""
    return frozenset(state for state, ways in transitions.items() if not ways)


class ConflictError(CallerError):
    """The thing is in a state in which this cannot be done."""

    problem_type = "conflict"
    status = 409


class Registry(Generic[_Record, _Run]):
    """All of one kind, in a cluster.

    Args:
        written: the record of an id in the dictionary.
        all_written: all records there.
        new_run: makes a run of one of which nothing is known yet.
    """

    kind: ClassVar[str]
    """As keys of the dictionary and commands call it."""
    invariant: ClassVar[str]
    """Broken by a change of state that `transitions` has not."""
    transitions: ClassVar[Transitions[Any]]
    missing: ClassVar[type[CallerError]]
    """Raised for an id that nothing has."""

    def __init__(
        self,
        dictionary: Dictionary,
        written: Callable[[str], _Record | None],
        all_written: Callable[[], list[_Record]],
        new_run: Callable[[], _Run],
    ) -> None:
        self.dictionary = dictionary
        self._written: Callable[[str], _Record | None] = written
        self._all_written: Callable[[], list[_Record]] = all_written
        self._live: dict[str, _Record] = {}
        self._runs: defaultdict[str, _Run] = defaultdict(new_run)

    def all(self) -> list[_Record]:
        """The newest state of each (progress that is not written yet included), oldest first."""
        records = [self._live.get(one.id, one) for one in self._all_written()]
        return sorted(records, key=lambda one: (len(one.id), one.id))

    def get(self, id_: str) -> _Record:
        """The newest state of one.

        Raises:
            CallerError: `missing`: there is none (the oldest of many that are over are forgotten).
        """
        found = self.find(id_)
        if found is None:
            raise self.missing(
                f"there is no {self.kind} {id_!r}",
                next_step=f"`keytide {self.kind} list` shows what there is",
            )
        return found

    def find(self, id_: str, state: str = "") -> _Record | None:
        """The newest state of one; None when there is none, or it is not in this state."""
        record = self._live.get(id_) or self._written(id_)
        return record if record is not None and state in ("", record.state) else None

    def run(self, id_: str) -> _Run:
        """What is known of one beside its record."""
        return self._runs[id_]

    def indexes(self, record: _Record) -> list[IndexRecord]:
        """The records of its indexes; one that has been dropped meanwhile is left out."""
        found = [self.dictionary.catalog.index(id_) for id_ in record.indexes]
        return [index for index in found if index is not None]

    def names(self, record: _Record) -> list[str]:
        """The names of its indexes; the id of one that has been dropped."""
        known = {index.id: index.name for index in self.indexes(record)}
        return [known.get(id_, id_) for id_ in record.indexes]

    def note_progress(self, record: _Record) -> None:
        """Keep a newer state in memory only; `put` writes it."""
        self._live[record.id] = record

    def put(self, record: _Record) -> None:
        """Write a newer state."""
        self.note_progress(record)
        self.dictionary.put(record)

    def move(self, record: _Record, action: str, **changes: Any) -> _Record:
        """Change a state, and further fields with it; of one that is over only the record is kept."""
        state = self.transitions[record.state].get(action)
        what = f"{self.kind} {record.id} cannot {action} in state {record.state}"
        invariant(state, self.invariant, what)
        moved = replace(record, state=state, **changes)
        self.put(moved)
        if not self.transitions[moved.state]:
            self._live.pop(record.id, None)
            self._runs.pop(record.id, None)
        return moved

    def _forget(self, over: list[_Record], kept: int, used: set[str]) -> list[str]:
        """Forget those that are over, the oldest first, but for the last `kept` and those that are used.
        Returns their ids."""
        gone = [old.id for old in over[:-kept] if old.id not in used]
        for id_ in gone:
            self.dictionary.delete(f"{self.kind}/{id_}")
        return gone
