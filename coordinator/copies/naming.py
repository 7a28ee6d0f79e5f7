"""An index's record after one of its copies has come to count, leaves, or is gone. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from keytide.catalog.copies import CopyRecord, LeavingCopy
from keytide.catalog.records import IndexRecord


def counting(index: IndexRecord, record: CopyRecord) -> IndexRecord:
    """With a copy that was filled: it serves from now on, and is waited for. If it is there to take the place
    of another one, that leaves."""
    number, nodes = record.slice, index.placement[record.slice]
    moved = record.replaces in nodes
    if moved:
        index = leaving(index, number, record.replaces)
    at = nodes.index(record.replaces) if moved else len(nodes)
    return _with(index, number, record.node, record.id, at)


def leaving(index: IndexRecord, number: int, node: str) -> IndexRecord:
    """With a copy that counts no longer and goes when nobody reads from it any more."""
    mine = {**index.leaving.get(number, {}), node: LeavingCopy(index.copy_of(number, node))}
    return replace(without(index, number, node), leaving={**index.leaving, number: mine})


def without(index: IndexRecord, number: int, node: str) -> IndexRecord:
    """Without a copy that has counted."""
    placement = [list(one) for one in index.placement]
    placement[number].remove(node)
    ids = {one: id_ for one, id_ in index.copies.get(number, {}).items() if one != node}
    copies = {n: one for n, one in {**index.copies, number: ids}.items() if one}
    return replace(index, placement=placement, copies=copies)


def acknowledged(index: IndexRecord, number: int, node: str) -> IndexRecord:
    """With the word that everybody knows that a copy leaves."""
    one = replace(index.leaving[number][node], acknowledged=True)
    return replace(index, leaving={**index.leaving, number: {**index.leaving[number], node: one}})


def gone(index: IndexRecord, number: int, node: str) -> IndexRecord:
    """Without a copy that has left."""
    left = {one: copy for one, copy in index.leaving[number].items() if one != node}
    return replace(index, leaving={n: one for n, one in {**index.leaving, number: left}.items() if one})


def counting_again(index: IndexRecord, number: int, node: str) -> IndexRecord:
    """With a copy that was leaving, and stays."""
    id_ = index.leaving[number][node].copy
    return _with(gone(index, number, node), number, node, id_, len(index.placement[number]))


def _with(index: IndexRecord, number: int, node: str, id_: str, at: int) -> IndexRecord:
    placement = [list(one) for one in index.placement]
    placement[number].insert(at, node)
    copies = {**index.copies, number: {**index.copies.get(number, {}), node: id_}} if id_ else index.copies
    return replace(index, placement=placement, copies=copies)
