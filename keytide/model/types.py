"""Distinct types for the numbers and names that must not be mixed up."""

from __future__ import annotations

from typing import Final, NewType

Partition = NewType("Partition", int)
"""Number of a source partition (a Kafka partition of the keyspace's topic)."""
TABLE_PARTITION: Final = Partition(0xFFFF_FFFF)
"""Stands for the source partition of a version that is a row of the table that a build began with
(`keytide.catalog.table_origin`). Such a version is older than every record of every partition, and that a
document has both is nothing strange. (The largest number that a stored record has room for; numbers of
partitions in Kafka are below 2^31.)"""
Offset = NewType("Offset", int)
"""A place in a Kafka partition; where a range is meant, always the next offset (exclusive)."""
LeaderEpoch = NewType("LeaderEpoch", int)
"""Kafka's leader epoch, -1 when unknown: with the topic id it names the branch of history that an offset
belongs to."""
SnapshotNumber = NewType("SnapshotNumber", int)
"""Number of a stability timestamp: the offset of its broadcast in the control topic (R3)."""
SliceNumber = NewType("SliceNumber", int)
NodeId = NewType("NodeId", str)
IndexId = NewType("IndexId", str)
"""Never reused (R19): names topics, folders, messages and tokens. An index's name may be given to another
index after a DROP."""
KeyspaceName = NewType("KeyspaceName", str)
"""The name of the source topic."""
BuildId = NewType("BuildId", str)
Term = NewType("Term", int)
"""Numbered term of the coordinator's leader; messages of lower terms are ignored."""
Incarnation = NewType("Incarnation", int)
"""Counts rollbacks of a keyspace; a snapshot is named by (number, incarnation)."""
CatalogVersion = NewType("CatalogVersion", int)
"""Counts changes of what projectors must emit (BUILD, DROP, topology); activation of an index is a commit
that carries it (R13)."""
Millis = NewType("Millis", int)
"""Milliseconds since the epoch."""
