"""The items that come most often, against exact counts."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.slice.frequent import FrequentItems
from tests import share

ITEMS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 50)), max_size=400)


@settings(max_examples=share.examples(400), deadline=None)
@given(ITEMS, st.integers(1, 12))
def test_estimates_hold_the_exact_counts(items: list[tuple[int, int]], wanted: int) -> None:
    sketch, exact = FrequentItems(wanted), Counter[bytes]()
    for number, weight in items:
        item = b"%d" % number
        sketch.add(item, weight)
        exact[item] += weight
    total = exact.total()
    found = {one.item: one for one in sketch.heaviest(100)}
    assert sketch.total == total
    assert len(found) <= 2 * wanted
    for item, one in found.items():
        assert one.least <= exact[item] <= one.most
        assert one.most - one.least <= total / (wanted + 1)
    for item, count in exact.items():
        assert count <= total / (wanted + 1) or item in found


@settings(max_examples=share.examples(200), deadline=None)
@given(ITEMS, ITEMS, st.integers(1, 12))
def test_what_came_before_weighs_half(
    before: list[tuple[int, int]], after: list[tuple[int, int]], wanted: int
) -> None:
    sketch, exact = FrequentItems(wanted), dict[bytes, float]()
    for items, share_of in ((before, 0.5), (after, 1.0)):
        for number, weight in items:
            item = b"%d" % number
            sketch.add(item, weight)
            exact[item] = exact.get(item, 0.0) + weight * share_of
        if share_of == 0.5:
            sketch.halve()
    assert sketch.total == sum(exact.values())
    for one in sketch.heaviest(100):
        assert one.least <= exact[one.item] <= one.most + 1e-9


def test_what_came_long_ago_is_forgotten() -> None:
    sketch = FrequentItems(4)
    for _ in range(100_000):
        sketch.add(b"a")
    for _ in range(30):
        sketch.halve()
    assert (sketch.total, sketch.heaviest(5)) == (0.0, [])
