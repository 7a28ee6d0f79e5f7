"""How an index does while it grows to 1, 5, 20 and 100 million documents: rate, freshness, scans, bytes.

The topic is filled while the projector stands still, so each million is measured alone; folds that fall due
by age partly run meanwhile. Scans and freshness are measured behind a million, while what it has left to fold
is folded.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from benchmarks.cost import folders_taken
from benchmarks.documents import PARTITIONS
from benchmarks.harness import Bench, Result, machine_state, percentiles, say
from benchmarks.latency import probes, scans
from benchmarks.throughput import BY_CITY, MILLION, TOPIC, check_count, fill, replayed

MILESTONES: Final = (1, 5, 20, 100)
"""Millions of documents at which all is looked at."""
SCANS: Final = 2_000
PROBES: Final = 100
WINDOW: Final = 5
"""Millions whose rate together is compared: that of single ones moves by a third, by the folds in them."""
SOURCE_KEPT: Final = 20
"""Millions up to which the source keeps its records: of 100 million they would be a third of the disk."""


def growth(millions: int = 20) -> Result:
    """Live rate of each further million of documents, and at some of them how readers fare, and what disks
    hold."""
    result = Result("growth", machine=machine_state())
    result.notes.append(
        "the topic is filled between the millions; folds that fall due by age partly run then"
    )
    result.sizes = {
        "documents": millions * MILLION,
        "partitions": PARTITIONS,
        "indexes": 1,
        "slices": 8,
        "nodes": 2,
    }
    if millions > SOURCE_KEPT:
        result.notes.append(
            f"the source forgets what is indexed, from {SOURCE_KEPT} million on, so that disks suffice"
        )
    with Bench() as bench:
        bench.make_topic(TOPIC, PARTITIONS)
        bench.create_index(BY_CITY)
        for million in range(1, millions + 1):
            fill(bench, range((million - 1) * MILLION, million * MILLION))
            rate = round(MILLION / replayed(bench, result, ["by_city"]))
            if million > SOURCE_KEPT:
                bench.forget(TOPIC)
            result.figures[f"documents_per_s_at_{million}m"] = rate
            say(f"million {million}: {rate:,} documents/s, memory MB {bench.memory()}")
            if million in MILESTONES or million == millions:
                _look(bench, result, million)
                if million > WINDOW:
                    share = rate_of(result, million) / rate_of(result, WINDOW)
                    result.figures[f"kept_share_at_{million}m"] = round(share, 3)
        result.figures["documents_per_s"] = result.figures[f"documents_per_s_at_{millions}m"]
        check_count(bench, "by_city", millions * MILLION)
        result.sizes["memory_mb"] = bench.memory()
    return result


def rate_of(result: Result, million: int) -> float:
    """Documents per second of the `WINDOW` millions up to one, together."""
    rates = [result.figures[f"documents_per_s_at_{one}m"] for one in range(million - WINDOW + 1, million + 1)]
    return len(rates) / sum(1 / rate for rate in rates)


def _look(bench: Bench, result: Result, million: int) -> None:
    """Add what readers see, and what disks hold."""
    read = percentiles(scans(bench, SCANS))
    fresh = percentiles([probe.took for probe in probes(bench, PROBES, first=0)])
    for name, found in (("scan", read), ("fresh", fresh)):
        result.figures |= {f"{name}_{one}_at_{million}m": value for one, value in found.items()}
    held = held_bytes(bench)
    if million > SOURCE_KEPT:
        del held["source"]
    each = {what: round(size / million / MILLION, 1) for what, size in sorted(held.items())}
    result.sizes[f"bytes_per_document_at_{million}m"] = each
    say(f"at {million} million: scans {read}, freshness {fresh}, bytes per document {each}")


def held_bytes(bench: Bench) -> Counter[str]:
    """Bytes that are taken of disks: by what is base, delta and whatever else of slices (undo journals), and
    Kafka's topics."""
    found: Counter[str] = Counter()
    for parts, size in folders_taken(bench.folder):
        where = next((one for one in parts if one == "base" or one.startswith("delta-")), "")
        if parts and parts[0].startswith("kafka"):
            topic = parts[-1].rpartition("-")[0]
            what = "source" if topic == TOPIC else "other topics"
            found["queue" if ".mutations." in topic else what] += size
        elif parts and parts[0].startswith("node"):
            found[where.partition("-")[0] or "other of slices"] += size
    return found
