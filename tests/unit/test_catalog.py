"""The dictionary's lists are those of its records, whatever changes between two questions."""

from __future__ import annotations

import random

from keytide.catalog import Catalog, KeyspaceRecord, NodeRecord, Record, encode_record, record_key


def _some(chance: random.Random) -> Record:
    name = f"n{chance.randrange(6)}"
    if chance.random() < 0.5:
        return NodeRecord(name, "", chance.randrange(100))
    return KeyspaceRecord(name, "its-id", chance.randrange(9), chance.randrange(9))


def _listed(catalog: Catalog, kind: type[Record]) -> list[Record]:
    return [catalog.records[key] for key in sorted(catalog.records) if isinstance(catalog.records[key], kind)]


def _are_right(catalog: Catalog) -> bool:
    nodes, keyspaces = catalog.nodes(), catalog.keyspaces()
    return nodes == _listed(catalog, NodeRecord) and keyspaces == _listed(catalog, KeyspaceRecord)


def test_lists_follow_every_change() -> None:
    chance, catalog, copies = random.Random(7), Catalog(), list[Catalog]()
    for offset in range(2_000):
        record = _some(chance)
        key = record_key(record)
        match chance.randrange(4):
            case 0:
                there = key in catalog.records
                assert catalog.remove(key) is there
            case 1:
                catalog.put(key, record)
            case 2:
                value = None if chance.random() < 0.2 else encode_record(record)
                catalog.apply(key, value, offset)
                assert catalog.offset == offset + 1
            case _:
                copies = [*copies[-3:], catalog.copy()]
        assert _are_right(catalog)
    assert copies
    assert all(_are_right(copy) for copy in copies)


def test_a_copy_does_not_change_with_its_original() -> None:
    catalog = Catalog()
    catalog.put("node/a", NodeRecord("a", "", 1))
    assert [node.id for node in catalog.nodes()] == ["a"]
    copy = catalog.copy()
    catalog.put("node/b", NodeRecord("b", "", 2))
    copy.remove("node/a")
    assert [node.id for node in catalog.nodes()] == ["a", "b"]
    assert copy.nodes() == []


def test_who_changes_a_list_changes_its_own() -> None:
    catalog = Catalog()
    catalog.put("node/a", NodeRecord("a", "", 1))
    catalog.nodes().clear()
    assert len(catalog.nodes()) == 1
