"""Lists of an index: what nodes answer, and what the command shows."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from indexer.hosting.node import ServingNode
from indexer.hosting.snapshots import SnapshotRing
from indexer.serve.index_lists import page
from indexer.slice.write_load import WriteLoad
from indexer.store.interface import Applied
from indexer.view import StoreDamagedError
from keytide.cli import app
from keytide.cli.output import out
from keytide.collation import encode_key
from keytide.errors import RetryableError
from keytide.wire.index_lists import ListAsk
from keytide.wire.messages import DuplicateDocument, Skip, UniqueViolation
from tests.memory_store.store import MemorySliceStore
from tests.store_kit import Version, segment, state


def node() -> ServingNode:
    """Slices 0 and 1 of index i, with lines at (0, 0), (0, 2), ... and (0, 1), (0, 3), ..."""
    made, rings = ServingNode("n1"), []
    for number in (0, 1):
        store = MemorySliceStore(Applied())
        offsets = range(number, 10, 2)
        skips = [
            Skip(-1, offset, b"d%d" % offset, ("not-json", "bad-id")[number], "why") for offset in offsets
        ]
        store.apply([segment([Version(b"d", 0, 9)], 0, 10, skips)], state(1, p0=10))
        ring = SnapshotRing(3)
        ring.add(store.snapshot(), 1, 0)
        rings.append((("i", number), ring))
    made.show_slices(rings)
    return made


def ask(**other: Any) -> ListAsk:
    return ListAsk(**{"what": "skipped", "index": "i", "slices": [0, 1], "limit": 4, **other})


def test_lines_of_several_slices_in_order() -> None:
    view = node()
    first = page(view, ask(reasons=True))
    assert [line.offset for line in first.lines] == [0, 1, 2, 3]
    assert (first.more, first.reasons, first.counted_all) == (True, {"bad-id": 5, "not-json": 5}, True)
    second = page(view, ask(after=(0, 3)))
    assert [line.offset for line in second.lines] == [4, 5, 6, 7]
    assert (second.more, second.reasons) == (True, {})
    last = page(view, ask(after=(0, 7)))
    assert [(line.offset, line.id) for line in last.lines] == [(8, b"d8"), (9, b"d9")]
    assert not last.more
    assert len(page(view, ask(limit=0)).lines) == 1


def test_counting_by_reason_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indexer.serve.index_lists.REASONS_LIMIT", 4)
    monkeypatch.setattr("indexer.serve.index_lists._BLOCK", 2)
    found = page(node(), ask(reasons=True))
    assert (found.reasons, found.counted_all) == ({"bad-id": 4, "not-json": 4}, False)


def test_violations_of_several_slices_in_order() -> None:
    view = node()
    documents = [DuplicateDocument(b"a", 0, 1, 5), DuplicateDocument(b"b", 1, 2, 6)]
    made = [UniqueViolation(encode_key((n,)), 3, documents) for n in range(5)]
    view.show_violations({("i", 0): tuple(made[::2]), ("i", 1): tuple(made[1::2])})
    first = page(view, ask(what="violations", limit=2))
    assert (first.violations, first.more) == (made[:2], True)
    rest = page(view, ask(what="violations", limit=9, after_key=made[1].key))
    assert (rest.violations, rest.more) == (made[2:], False)


def test_what_is_written_by_slice() -> None:
    view = node()
    loads = {("i", number): WriteLoad(number) for number in (0, 1)}
    view.show_slices((), loads=loads)
    assert page(view, ask(what="load")).written == [loads["i", 0].shown, loads["i", 1].shown]


def test_slices_that_are_not_open_are_an_error() -> None:
    view = node()
    for what in ("skipped", "violations", "load"):
        with pytest.raises(RetryableError, match="not open on node n1") as caught:
            page(view, ask(what=what, slices=[2]))
        assert caught.value.problem_type == "index-not-ready"


def test_a_damaged_ledger_takes_its_slice_out_of_service(monkeypatch: pytest.MonkeyPatch) -> None:
    view = node()

    def damaged(*_: object) -> None:
        raise StoreDamagedError("a row is no line")

    reading = view.tip("i", 0)
    assert reading is not None
    monkeypatch.setattr(cast(Any, reading)._snapshot, "skips", damaged)
    reading.release()
    with pytest.raises(RetryableError, match="is damaged") as caught:
        page(view, ask())
    assert caught.value.problem_type == "store-damaged"
    assert view.tip("i", 0) is None


# --- the command ------------------------------------------------------------------------------------------


class FakeAdmin:
    """Answers with pages of three."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, method: str, path: str, *, limit: int, page: str | None = None) -> dict[str, Any]:
        assert (method, path.rsplit("/", 1)[0]) == ("GET", "/v1/indexes/u")
        begin = int(page or 0)
        end = min(begin + min(limit, 3), 7)
        numbers = range(begin, end)
        more = str(end) if end < 7 else None
        if path.endswith("skipped"):
            lines = [
                {"partition": 0, "offset": n, "id": "d", "reason": "r", "detail": "[x]"} for n in numbers
            ]
            reasons = {"r": 7} if page is None else None
            return {
                "skipped": 7, "reasons": reasons, "reasons_complete": page is None or None, "lines": lines,
                "page": more,
            }  # fmt: skip
        documents = [{"id": f"[d{n}]", "partition": n, "offset": 40 + n, "time": 1} for n in (0, 1)]
        keys = [{"key": ["k", n], "since_snapshot": 9, "since": 1, "documents": documents} for n in numbers]
        return {"unique": True, "violations": 7, "keys": keys, "page": more}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("keytide.cli.admin.Admin", FakeAdmin)
    monkeypatch.setattr(out, "_width", 200)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["index", *arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


def test_all_pages_are_one_list(run: Any) -> None:
    document = json.loads(run("skipped", "u", "--json"))
    assert [line["offset"] for line in document["lines"]] == list(range(7))
    assert (document["page"], document["reasons"]) == (None, {"r": 7})
    assert len(json.loads(run("violations", "u", "--json"))["keys"]) == 7
    cut = json.loads(run("violations", "u", "--limit", "4", "--json"))
    assert (len(cut["keys"]), cut["page"]) == (4, "4")


def test_people_see_tables(run: Any) -> None:
    text = run("skipped", "u")
    assert "7 in all: r 7" in text
    assert "[x]" in text
    assert "there are more" not in text
    text = run("violations", "u", "--limit", "2")
    assert '["k", 1]' in text
    assert "[d1]" in text
    assert "7 in all" in text
    assert "there are more" in text
