"""`Structure`: what every structure must be able to say, and `PlaceStructure`: what one does whose keys are
places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol, Self, TypeGuard

from keytide.collation import Span, Value
from keytide.errors import CallerError
from keytide.geometry import QueryShape
from keytide.model.entry import MAX_KEY_BYTES

MOST_KEYS: Final = 10_000
"""Whole keys that one condition is answered for, where a structure finds nothing else."""
TOO_MANY_KEYS: Final = f"finds at most {MOST_KEYS} whole keys for one query, and this one asks for more"
ORDERED_INSTEAD: Final = (
    f"an index USING btree, which leaves out keys of more than {MAX_KEY_BYTES >> 10} KiB (they are in its "
    "skip ledger)"
)
"""What to ask for an order, where it is not known whether there are such keys."""
Inclusion = Literal["both", "low", "high", "neither"]


class NotOrderedError(CallerError):
    """Something was asked of an index whose structure keeps no order of keys. `extra` of an answer has
    `create_index`, the statement of an index that answers it."""

    problem_type = "index-not-ordered"
    status = 422


class WantedKeys(NamedTuple):
    """A selection by values, as scans give it: `equals`, `prefix` behind it, or bounds.

    Attributes:
        equals: leading key parts; None for none.
        prefix: what the next part, a string, begins with.
        low, high: leading parts of the bounds.
        inclusion: which of the bounds belong to it.
        region: what a place must be like, of a structure that finds places.
    """

    equals: Sequence[Value] | None = None
    prefix: str | None = None
    low: Sequence[Value] | None = None
    high: Sequence[Value] | None = None
    inclusion: Inclusion = "both"
    region: QueryShape | None = None


class Selected(NamedTuple):
    """What of an index answers a selection.

    Attributes:
        spans: entries outside of them are not meant; in no order.
        keys: canonical keys: of the entries in the spans those that have one of them; empty for all.
    """

    spans: Sequence[Span]
    keys: tuple[bytes, ...] = ()


class Values(Protocol):
    """Some values of a key part: those whose code is at or above `low` and below `high`."""

    @property
    def low(self) -> bytes: ...
    @property
    def high(self) -> bytes: ...
    @property
    def is_point(self) -> bool:
        """Whether it is one value; `low` is its code then."""
        ...


Box = Mapping[int, Sequence[Values]]
"""Key part -> the values that it may have, ascending; all of them for a part that is not there."""


@dataclass(frozen=True, slots=True)
class Boxed:
    """What of an index answers a box.

    Attributes:
        spans: in no order; they may touch.
        keys: as in `Selected`.
        realised: the key parts of which the spans (and `keys`) hold no other values than the box.
        depth: how many leading key parts the spans bound.
    """

    spans: list[Span]
    keys: tuple[bytes, ...]
    realised: frozenset[int]
    depth: int


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a definition says beside its key that a structure may not go with.

    Attributes:
        unique: equal keys are a violation.
        include_missing: documents without the leading key have entries.
        elements: it has an entry for each element of an array (UNNEST).
    """

    unique: bool = False
    include_missing: bool = False
    elements: bool = False


class Structure(Protocol):
    """The structure of one index: made by `structure_of` from its name, and the parts and directions of the
    index's key.

    What follows from the name alone is said by the class (`IndexDefinition.structure_type`).

    Attributes:
        name: as USING has it.
        since: the version of the protocol from which on an index may have it (`keytide.model.protocol`).
        ordered: entries come in the order of keys, so that whatever takes an order is answered. Another
            structure may refuse it (`NotOrderedError`).
        has_places: keys are places. It finds them by what they must be like (`WantedKeys.region`) and not by
            values, finds more than is meant (the exact test is a condition like any other), has a system of
            coordinates and maps, and may be partitioned by RANGE(cell). Such a one is a `PlaceStructure`.
        key_in_value: values hold the canonical key, for the stored key is another one.
        several: a canonical key may have several entries, of which a reader wants one. (The projector makes
            them of places only, and readers tell the first by its cell: so only one that `has_places` may.)
        key_limit: bytes of the longest canonical key; None for no limit of its own.
        stored_bytes: how many a stored key has, or nearly every one; None for as many as the canonical key.
    """

    name: ClassVar[str]
    since: ClassVar[int]
    ordered: ClassVar[bool]
    has_places: ClassVar[bool]
    key_in_value: ClassVar[bool]
    several: ClassVar[bool]
    key_limit: ClassVar[int | None]
    stored_bytes: ClassVar[int | None]

    @classmethod
    def made(cls, parts: int, descending: tuple[bool, ...], srid: int) -> Self:
        """That of an index.

        Args:
            parts: how many parts its key has.
            descending: their directions; empty when every part ascends.
            srid: in which system its coordinates are, if it `has_places`.
        """
        ...

    @property
    def parts(self) -> int:
        """How many parts the index's key has."""
        ...

    @property
    def descending(self) -> tuple[bool, ...]:
        """Their directions; empty when every part ascends."""
        ...

    def fault(self, wishes: Wishes) -> tuple[str, str] | None:
        """What a definition may not say with this structure: (reason, next step); None when nothing is
        wrong."""
        ...

    # --- entries ------------------------------------------------------------------

    def stored(self, keys: Sequence[bytes]) -> list[tuple[bytes, ...]]:
        """The stored keys of each of a document's canonical keys, which are different ones: different again.
        More than one, ascending, only if `several`.

        Raises:
            NotAGeometryError: of a spatial structure: a key is no place.
        """
        ...

    def stem(self, key: bytes) -> bytes:
        """What every entry key of a canonical key begins with. Those of other keys may, too, unless the
        structure is ordered. (Nothing, if there are `several`.)"""
        ...

    def id_start(self, entry_key: bytes) -> int:
        """Where the document id begins in an entry key.

        Raises:
            InvariantViolationError: these bytes are no entry key of the structure.
        """
        ...

    def id_starts(self, entry_keys: Sequence[bytes]) -> list[int]:
        """The same of many, in one loop."""
        ...

    def canonical(self, stored: bytes, value: bytes) -> bytes:
        """The canonical key of an entry.

        Args:
            stored: the entry key without the id.

        Raises:
            InvariantViolationError: the value was not made for this structure.
        """
        ...

    def in_full(self, entry_key: bytes, value: bytes) -> tuple[bytes, bytes]:
        """An entry with its canonical key in front of the id, and nothing of the key in the value: as a
        btree has it, which is how entries are read by values. Raises as `id_start` and `canonical`."""
        ...

    def check(self, entry_key: bytes, value: bytes) -> None:
        """See that an entry is one of the structure: that both can be read, and say the same.

        Raises:
            InvariantViolationError: they cannot, or do not.
        """
        ...

    def without_columns(self, value: bytes) -> bytes:
        """An entry's value without the included columns."""
        ...

    # --- conditions ---------------------------------------------------------------

    def selected(self, wanted: WantedKeys) -> Selected:
        """What answers a selection by values.

        Raises:
            NotOrderedError: only an ordered structure does.
            CallerError (422): more parts than the key has, or a value that no key can hold.
        """
        ...

    def boxed(self, box: Box, most: int) -> Boxed | str:
        """What answers a box, in at most about so many spans; or why nothing does, behind "it"."""
        ...


PlaceKeys = tuple[bytes, bytes, tuple[bytes, ...]]
"""The canonical key of a document's place, its forms, and the stored keys: one or more, ascending."""


class PlaceStructure(Structure, Protocol):
    """A structure whose keys are places."""

    def indexed_places(self, values: Sequence[Any]) -> list[PlaceKeys | Exception]:
        """What of many documents' values is indexed, or why nothing is.

        The errors are those of `encode_part` and `geometry_of`, and what a library of geometry raises.
        """
        ...


def keeps_places(structure: Structure) -> TypeGuard[PlaceStructure]:
    """Whether a structure's keys are places."""
    return structure.has_places
