"""What an index's structure (USING) decides, behind one interface: `btree`, `hash` and
`spatial`. Pure.

Theory of operation
===================
The store keeps entries in the order of their bytes, whatever the structure, so all that holds of slices (one
commit per timestamp, snapshots, folds, copies, rollback, digests) holds of every structure. An entry is
(entry key, value), and its entry key is a *stored key* and the document id. What the structure decides is

* which stored key a document's key gets, and what goes into the value for it (`Structure.stored`, and
  `Structure.key_in_value`, by which the projector's generated functions go);
* how an entry is read: where its id begins, and its canonical key (`id_start`, `id_starts`, `canonical`,
  `in_full`), and whether it is one (`check`);
* which stretches of entry keys answer a condition, and which canonical keys are meant in them (`selected`,
  `boxed`): the exact filter afterwards;
* whether entries come in the order of keys (`ordered`), and so ranges, ORDER BY and pages of groups;
* whether its keys are values or places (`has_places`);
* what a definition may not say (`fault`), since which version of the protocol (`since`), and how EXPLAIN
  names it.

A further structure is one module, and a line in `registry`: nobody outside this room asks for a name, which
`tests/unit/test_style.py` sees to. `tests/structure_suite.py` is the suite that each one must pass, and
`tests/unit/test_fourth_structure.py` takes one more from end to end; CONTRIBUTING.md goes through it step by
step. (PostgreSQL's access methods, `CREATE INDEX ... USING method`, are the model; the hash structure is
theirs with the key kept, so that collisions are told apart without the document.)

Imported by `keytide.catalog`, `keytide.definition`, `keytide.query`, `projector.core`, `indexer.slice` and
`indexer.scan`; changed with what is on disk, so never for an index that exists.
"""

from keytide.structure.interface import (
    MOST_KEYS,
    ORDERED_INSTEAD,
    TOO_MANY_KEYS,
    Box,
    Boxed,
    NotOrderedError,
    Selected,
    Structure,
    WantedKeys,
    Wishes,
    keeps_places,
)
from keytide.structure.registry import DEFAULT_STRUCTURE, STRUCTURES, StructureName, structure_of

__all__ = [
    "DEFAULT_STRUCTURE",
    "MOST_KEYS",
    "ORDERED_INSTEAD",
    "STRUCTURES",
    "TOO_MANY_KEYS",
    "Box",
    "Boxed",
    "NotOrderedError",
    "Selected",
    "Structure",
    "StructureName",
    "WantedKeys",
    "Wishes",
    "keeps_places",
    "structure_of",
]
