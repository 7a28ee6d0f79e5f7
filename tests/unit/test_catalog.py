"""The dictionary's lists are those of its records, whatever changes between two questions."""

from __future__ import annotations

import random

import msgspec

from keytide.catalog.catalog import Catalog
from keytide.catalog.records import KeyspaceRecord, NodeRecord, Record, encode_record, record_key


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


def test_records_of_the_release_before_are_read() -> None:
    """As it wrote them: without the members that there are by now."""
    catalog = Catalog()
    written = {
        "keyspace/people": b'{"name":"people","topic_id":"t1","partitions":8,"version":3,"incarnation":1}',
        "term": b'{"term":4,"holder":"host/1","claimed_at":5}',
        "node/n1": b'{"id":"n1","url":"http://127.0.0.1:8093","first_seen":7}',
    }
    for offset, (key, value) in enumerate(written.items()):
        catalog.apply(key, value, offset)
    keyspace = catalog.keyspace("people")
    assert keyspace == KeyspaceRecord("people", "t1", 8, 3, 1)
    assert (keyspace.bound, keyspace.fresh_at) == ({}, 0)
    assert catalog.term == 4


def test_a_release_before_reads_what_is_written_now() -> None:
    """It knows no bound, and must not stumble over one."""
    now = KeyspaceRecord("people", "t1", 8, 3, 1, {0: 7}, 9)

    class Before(msgspec.Struct, frozen=True):
        name: str
        topic_id: str
        partitions: int
        version: int
        incarnation: int = 0

    read = msgspec.json.decode(encode_record(now), type=Before)
    assert read == Before("people", "t1", 8, 3, 1)
