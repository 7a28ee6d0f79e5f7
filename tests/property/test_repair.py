"""Corrections of random damage: both kinds of stores come to the same rows, which are those of the source,
with the mirror and the counts right; and what is spared, or newer, is not touched."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from indexer.store.fold.worker import FoldWorker
from indexer.store.interface import Applied, SliceStore
from keytide.model.timestamp import Timestamp
from keytide.wire.corrections import Correction, Round, pack_corrections
from keytide.wire.messages import Corrections
from tests import share
from tests.memory_store.store import MemorySliceStore
from tests.store_kit import Version, all_rows, key, lmdb_store, segments, state
from tests.unit.test_repair_store import plant

IDS = [b"a", b"b", b"c", b"d"]
KEYS = [key("k"), key("l"), key("m" * 600)]
VALUES = [b"", b"v"]
Entries = tuple[tuple[bytes, bytes], ...]

entries = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=2).map(
    lambda some: tuple(sorted(some.items()))
)
documents = st.lists(st.tuples(st.sampled_from(IDS), entries), max_size=12)
damage = st.lists(
    st.tuples(st.sampled_from(["ghost", "lose", "value"]), st.sampled_from(IDS), st.sampled_from(KEYS)),
    max_size=6,
)


def _damage(store: SliceStore, harm: list[tuple[str, bytes, bytes]]) -> None:
    for kind, docid, where in harm:
        rows = dict(all_rows(store))
        entry_key = where + docid
        if kind == "ghost" and entry_key not in rows:
            plant(store, {entry_key: b"ghost"})
        elif kind == "lose" and entry_key in rows and len(entry_key) <= 500:
            plant(store, {}, removed=(entry_key,))
        elif kind == "value" and entry_key in rows:
            plant(store, {entry_key: b"wrong"}, written_over=True)


def _corrections(
    store: SliceStore, truth: dict[bytes, tuple[int, Entries]], until: int, ids: set[bytes]
) -> Corrections:
    rows = [entry_key for entry_key, _ in all_rows(store)]
    found = []
    for docid in sorted(ids):
        offset, right = truth.get(docid, (0, ()))
        strays = [row[:-1] for row in rows if row.endswith(docid) and row[:-1] not in dict(right)]
        found.append(Correction(docid, 0, offset, 1_000, False, dict(right), strays))
    return pack_corrections(Round("i", 0, "j", 0, 0), 0, Timestamp.of({0: until}), found)


@settings(max_examples=share.examples(60), deadline=None)
@given(before=documents, later=documents, harm=damage, folded=st.booleans())
def test_damage_is_put_right_and_nothing_newer_is_touched(
    before: list[tuple[bytes, Entries]],
    later: list[tuple[bytes, Entries]],
    harm: list[tuple[str, bytes, bytes]],
    folded: bool,
    folds: FoldWorker,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder: Path = tmp_path_factory.mktemp("slice")
    versions = [Version(docid, 0, at, 1_000, some) for at, (docid, some) in enumerate(before)]
    truth = {version.id: (version.offset, version.entries) for version in versions}
    stores: list[SliceStore] = [MemorySliceStore(Applied()), lmdb_store(folder / "s", folds)]
    ids = set(IDS)
    seen = []
    for store in stores:
        store.apply(segments(versions), state(1, p0=len(versions)))
        if folded and store.start_fold():
            assert store.finish_fold(30) is not None
        _damage(store, harm)
        corrections = _corrections(store, truth, len(versions), ids)
        newer = [Version(docid, 0, len(versions) + at, 1_000, some) for at, (docid, some) in enumerate(later)]
        broken = {docid for _, docid, _ in harm}
        newer = [version for version in newer if version.id not in broken]
        spared_ids = {version.id for version in newer}
        store.apply(segments(newer), state(2, p0=len(versions) + len(later)))
        spared = frozenset(n for n, docid in enumerate(sorted(ids)) if docid in spared_ids)
        store.correct(corrections, spared, state(3, p0=len(versions) + len(later)))
        assert store.correct(corrections, spared, store.applied) == 0
        now = {**truth, **{version.id: (version.offset, version.entries) for version in newer}}
        want = sorted((where + docid, value) for docid, (_, some) in now.items() for where, value in some)
        assert all_rows(store) == want
        store.check_mirror()
        if store.start_fold():
            assert store.finish_fold(30) is not None
        store.check_mirror()
        seen.append((all_rows(store), store.counts))
        store.close()
    assert seen[0] == seen[1]
