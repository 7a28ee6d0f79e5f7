"""What an index is: `IndexDefinition`, immutable, written as JSON into the cluster's metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict
from typing import Literal as OneOf

import msgspec

from keytide.collation import encode_part
from keytide.definition.expression import (
    Call,
    DistanceTo,
    DocumentId,
    Expression,
    Literal,
    Path,
    Predicate,
    Relates,
    Unnest,
    same,
    walk,
)
from keytide.definition.render import path_name, render_expression
from keytide.structure import DEFAULT_STRUCTURE, STRUCTURES, Structure, StructureName, structure_of
from keytide.structure.spatial import GEOGRAPHIC_SRID

PartitionKind = OneOf["hash", "range"]
DEFAULT_SLICES: Final = 8
MAX_SLICES: Final = 1024
MAX_REPLICAS: Final = 3
"""Copies of each slice beside the first. Each costs as much as the first one: to hear, to store, to fold."""
MAX_SPLIT_BYTES: Final = 256
"""Of an encoded split: routing compares so many bytes of every key at most."""
MAX_KEY_PARTS: Final = 32
"""As in PostgreSQL."""
CELL: Final = Path(("cell",))
"""What a spatial index is partitioned by with RANGE(cell): the cell that an entry stands for."""
MAX_INCLUDED: Final = 128
"""Paths: each is read of every document and kept with every entry. Whoever wants all of a document
has it in its topic."""


class PartitionBy(msgspec.Struct, frozen=True):
    """What PARTITION BY says.

    Attributes:
        kind: by the hash of the expression's value, or by the range that it falls into.
        splits: of RANGE, where the partitions part, ascending; empty when the build is to find them.
        slices: of how many slices each partition is, by the list of SUBPARTITION BY HASH(id).
        each: of how many slices every one is, by its number; 0 where it is not said.
    """

    kind: PartitionKind
    expression: Expression
    splits: tuple[Literal, ...] = ()
    slices: tuple[int, ...] = ()
    each: int = 0

    @property
    def spreads(self) -> bool:
        """Whether SUBPARTITION BY is said."""
        return bool(self.slices or self.each)

    def spread(self, partitions: int) -> tuple[int, ...]:
        """Of how many slices each of so many partitions is."""
        return self.slices or (self.each or 1,) * partitions


class Slices(TypedDict):
    """The members of a definition that say how many there are."""

    slices: int
    partition_slices: tuple[int, ...] | msgspec.UnsetType


def slices_of(by_partition: Sequence[int]) -> Slices:
    """What a definition says of partitions of so many slices each."""
    several = tuple(by_partition) if max(by_partition) > 1 else msgspec.UNSET
    return {"slices": sum(by_partition), "partition_slices": several}


class KeyPart(msgspec.Struct, frozen=True):
    """One part of an index's key."""

    expression: Expression
    descending: bool = False


class IndexDefinition(msgspec.Struct, frozen=True):
    """An index as its CREATE INDEX says it. Its id, state and placement are in the catalog.

    Attributes:
        name: what users call it.
        keyspace: the source topic.
        statement: the statement as it was given; in its normal form (`keytide.definition.normal`) once the
            index was altered.
        keys: the parts of the key, the leading one first.
        partition: entries go to slices by this expression's encoded value (ascending); by default the
            leading key.
        include: paths whose values rows bring along.
        where: only documents for which this is true are indexed; None for all.
        replicas: copies of each slice that there are to be beside the first.
        unique: two documents with one key are a violation; keys with NULL or MISSING in a part are equal to
            none. It is partitioned by a key part.
        include_missing: documents without the leading key (or without elements to unnest) are indexed as
            MISSING.
        defer_build: CREATE INDEX only writes the definition; BUILD INDEX starts the build.
        partition_kind: by the hash of that value, or by the range that it falls into.
        slices: of all partitions together.
        given_splits: of a RANGE index, where its partitions part, ascending (one less than partitions); empty
            when they are found from the data by the build. `keytide.catalog.partitioning` says what they
            mean.
        auto_split: it gets more slices by itself where one is hot; not there when it does not, so that its
            records are what they were before there was this option.
        structure_name: what USING says; not there when it says btree, likewise.
        partition_slices: of how many slices each partition is; not there when each is one, likewise.
        srid: of a spatial index in a plane, 0; not there of one on the globe, and of other structures.
    """

    name: str
    keyspace: str
    statement: str
    keys: tuple[KeyPart, ...]
    partition: Expression
    include: tuple[Path, ...] = ()
    where: Predicate | None = None
    slices: int = DEFAULT_SLICES
    replicas: int = 0
    unique: bool = False
    include_missing: bool = False
    defer_build: bool = False
    partition_kind: PartitionKind = "hash"
    given_splits: tuple[Literal, ...] = ()
    auto_split: OneOf[True] | msgspec.UnsetType = msgspec.UNSET
    structure_name: StructureName | msgspec.UnsetType = msgspec.UNSET
    partition_slices: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    srid: int | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.using not in STRUCTURES:
            raise ValueError(f"Invalid enum value {self.using!r}")  # as msgspec says it, which asks

    @property
    def spread(self) -> tuple[int, ...]:
        """Of how many slices each partition is; empty when each is one."""
        return () if self.partition_slices is msgspec.UNSET else self.partition_slices

    @property
    def partitions(self) -> int:
        """How many there are."""
        return len(self.spread) or self.slices

    @property
    def slices_by_partition(self) -> tuple[int, ...]:
        """Of how many slices each partition is, be it one."""
        return self.spread or (1,) * self.slices

    @property
    def using(self) -> StructureName:
        """The name of its structure."""
        return DEFAULT_STRUCTURE if self.structure_name is msgspec.UNSET else self.structure_name

    @property
    def structure_type(self) -> type[Structure]:
        """What is true of its structure whatever its key is."""
        return STRUCTURES[self.using]

    @property
    def structure(self) -> Structure:
        """What its entries are made like, and found by."""
        return structure_of(self.using, len(self.keys), self.descending, self.system)

    @property
    def system(self) -> int:
        """The srid of its coordinates, of a spatial index."""
        return GEOGRAPHIC_SRID if self.srid is msgspec.UNSET else self.srid

    @property
    def partitioned_by_cell(self) -> bool:
        """Whether an entry's slice follows from its cell, of a spatial index."""
        return self.structure_type.has_places and same(self.partition, CELL)

    @property
    def splits_itself(self) -> bool:
        """Whether it gets more slices by itself where one is hot."""
        return self.auto_split is True

    @property
    def descending(self) -> tuple[bool, ...]:
        """For each key part whether its order is inverted; empty when none is, as `keytide.collation` takes
        it."""
        directions = tuple(part.descending for part in self.keys)
        return directions if any(directions) else ()

    @property
    def speaks_of_places(self) -> bool:
        """Whether releases before protocol version 5 do not understand it."""
        said = [
            self.partition,
            *(part.expression for part in self.keys),
            *([self.where] if self.where else []),
        ]
        return self.structure_type.has_places or any(
            isinstance(node, Relates | DistanceTo) or (isinstance(node, Call) and node.function == "point")
            for one in said
            for node in walk(one)
        )

    @property
    def unnest(self) -> Unnest | None:
        """The array whose elements are indexed one by one, if there is one."""
        for part in self.keys:
            for node in walk(part.expression):
                if isinstance(node, Unnest):
                    return node
        return None

    @property
    def include_names(self) -> tuple[str, ...]:
        """The included columns as rows name them."""
        return tuple(path_name(path) for path in self.include)

    @property
    def partition_part(self) -> int | None:
        """Which key part the partitioning goes by; None when it is none of them.

        A scan that fixes this part with `equals` needs the slices of one partition only
        (`keytide.catalog.partitioning`).
        """
        for ordinal, part in enumerate(self.keys):
            if same(part.expression, self.partition):
                return ordinal
        return None

    @property
    def partitioned_by_id(self) -> bool:
        return isinstance(self.partition, DocumentId)

    @property
    def entries_say_slice(self) -> bool:
        """Whether an entry says by itself what its slice follows from."""
        return self.partition_part is not None or self.partitioned_by_id or self.partitioned_by_cell

    @property
    def raw_id_routes(self) -> bool:
        """Whether an entry's slice follows from the bytes of the document id, rather than from an encoded
        value."""
        whole = len(self.keys) == 1 and self.partition_part == 0 and not self.keys[0].descending
        return self.partition_kind == "hash" and self.partitioned_by_id and not whole

    @property
    def samples_splits(self) -> bool:
        """Whether its build has to find the splits."""
        return self.partition_kind == "range" and self.partitions > 1 and not self.given_splits

    @property
    def wanted_splits(self) -> str:
        """Which splits its build has to find, in words that tell them from those of any other partitioning;
        "" when it has to find none."""
        if not self.samples_splits:
            return ""
        return f"{self.partitions - 1} splits of {render_expression(self.partition)}"

    @property
    def encoded_splits(self) -> tuple[bytes, ...]:
        """The given splits, encoded."""
        return tuple(encode_part(split.value) for split in self.given_splits)

    @property
    def slices_fault(self) -> tuple[str, str] | None:
        """What is wrong with how many slices there are, as `partition_fault` says it."""
        if self.slices <= MAX_SLICES:
            return None
        spread = self.slices_by_partition
        each = spread[0] if len(set(spread)) == 1 else spread
        return (
            f"{len(spread)} partitions of {each} slices make {self.slices:,} slices, and {MAX_SLICES:,} is "
            "the most",
            "Say fewer partitions, WITH (partitions=n), or fewer SLICES of each.",
        )

    @property
    def partition_fault(self) -> tuple[str, str] | None:
        """What is wrong with its partitioning by what its key is: (reason, next step); None when nothing is.

        Equal keys of a UNIQUE index must meet in one slice, which then sees that they are (R35). An
        expression over key parts would not do: 5 and 5.0 are one key, and CAST makes two strings of them.
        """
        if self.spread and self.unique:
            return (
                "equal keys of a UNIQUE index lie in one slice, which then sees that they are equal: a "
                "partition of several slices would part them",
                "Leave SUBPARTITION BY out, or UNIQUE.",
            )
        if self.spread and self.partitioned_by_id:
            return (
                f"{self.partition_kind.upper()}(id) puts a document into one slice already",
                "Leave SUBPARTITION BY out, and say how many slices there are: WITH (slices=n).",
            )
        if self.structure_type.has_places and self.partition_part is not None:
            return (
                "a place is no value that entries could be shared out by: it has several cells, and no order",
                "Write RANGE(cell), which keeps neighbours together, or HASH(id), which spreads them.",
            )
        cells = [split.value for split in self.given_splits]
        if self.partitioned_by_cell and any(type(one) is not int or one < 0 for one in cells):
            return (
                "a cell is a whole number, and so is where cells part",
                "Leave SPLIT AT out: the build finds splits from the data.",
            )
        if self.partitioned_by_cell and self.partition_kind == "hash":
            return (
                "neighbours have other cells, and a hash has no neighbours",
                "Write RANGE(cell), which keeps them together, or HASH(id), which spreads them.",
            )
        if self.partition_part is not None:
            return None
        if self.unique:
            part = render_expression(self.keys[0].expression)
            return (
                "a UNIQUE index is partitioned by a part of its key, so that equal keys lie in one slice",
                f"Leave PARTITION BY out, or write HASH({part}) or RANGE({part}).",
            )
        if any(isinstance(node, Unnest) for node in walk(self.partition)):
            return (
                f"UNNEST in {self.partition_kind.upper()} must be written as in the key",
                "Or use HASH(id).",
            )
        return None
