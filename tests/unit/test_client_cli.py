"""`keytide scan` against a real scan endpoint: tables, JSON, files, what it refuses."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import Result

from keytide.cli.output import out
from keytide.cli.scan import _key
from keytide.errors import CallerError
from keytide.settings.settings import load_settings
from tests.unit.command import run_command
from tests.unit.scan_world import Doc, World
from tests.unit.test_api import serving

CITIES = ["Aachen", "Bonn", "Boston", "Zürich"]
PEOPLE = [Doc([CITIES[at % 4], at], f"u{at:03}", f'{{"name":"n{at}"}}'.encode()) for at in range(100)]
IN_ORDER = [doc.id for doc in sorted(PEOPLE, key=lambda doc: list(doc.key))]


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    world = World(
        "CREATE INDEX by_city ON users (city, n) INCLUDE (name) WITH (slices=3)",
        "CREATE INDEX mixed ON users (city) INCLUDE (name) WITH (slices=1)",
        node_count=1,
    )
    odd = [Doc(["Bonn"], f"u{at:04}", b'{"name":"text"}') for at in range(2_000)]
    odd.append(Doc(["Bonn"], "u9999", b'{"name":[1]}'))
    world.commit(5, {"by_city": PEOPLE, "mixed": odd})
    with serving(world.views["n0"], load_settings()) as url:
        yield url


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "_width", 200)


def scan(node: str, *arguments: str, status: int = 0, index: str = "by_city") -> Result:
    result = run_command(["scan", index, "--node", node, *arguments])
    assert result.exit_code == status, result.output
    return result


def ids(lines: str) -> list[str]:
    return [json.loads(line)["id"] for line in lines.splitlines()]


def test_a_table_for_people(node: str) -> None:
    shown = scan(node, "--equals", "Bonn").stdout
    assert "by_city at snapshot 5" in shown
    assert '["Bonn", 1]' in shown
    assert "there are more rows" in shown
    assert "there are more rows" not in scan(node, "--equals", '["Bonn", 1]').stdout
    assert "25 entries at snapshot 5" in scan(node, "--equals", "Bonn", "--count").stdout


def test_a_table_has_its_rows_though_they_come_on_several_pages() -> None:
    world = World("CREATE INDEX by_city ON users (city, n) INCLUDE (name)", node_count=1)
    world.commit(5, {"by_city": PEOPLE})
    with serving(world.views["n0"], load_settings(scan={"max_page_bytes": 1_024})) as url:
        page = json.loads(scan(url, "--limit", "60", "--json").stdout)
        assert page["page"] is not None
        for limit, shown in ((len(page["rows"]) - 1, None), (60, None), (99, None), (100, 100), (500, 100)):
            table = scan(url, "--limit", str(limit)).stdout
            assert len(re.findall(r"u\d{3}", table)) == (shown or limit)
            assert ("there are more rows" in table) == (shown is None)


def test_the_selection(node: str) -> None:
    page = json.loads(scan(node, "--low", '["Bonn", 90]', "--high", "Boston", "--reverse", "--json").stdout)
    assert page["snapshot"] == 5
    first = {"key": ["Boston", 98], "id": "u098", "include": {"name": "n98"}, "missing": []}
    assert page["rows"][0] == first
    spans = '[{"equals": ["Bonn"]}, {"prefix": "Z"}]'
    assert json.loads(scan(node, "--spans", spans, "--count", "--json").stdout)["count"] == 50
    keys = json.loads(scan(node, "--distinct", "--offset", "98", "--json").stdout)["rows"]
    assert [row["key"] for row in keys] == [["Zürich", 95], ["Zürich", 99]]
    moment = ("--at-least", '{"0": 5}', "--max-staleness", "3600000", "--timeout", "900")
    assert json.loads(scan(node, *moment, "--count", "--json").stdout)["count"] == 100
    assert json.loads(scan(node, "--all", "--count", "--json").stdout)["count"] == 100, "as without --all"
    assert "0 entries" in scan(node, "--equals", "NaN", "--count").stdout, "a word: JSON has no such number"
    late = scan(node, "--at-least", '{"0": 6}', "--timeout", "50", "--json", status=1)
    assert json.loads(late.stdout)["type"] == "timestamp-not-reached"


def test_the_system_of_a_place_may_be_said() -> None:
    world = World("CREATE INDEX by_place ON users USING spatial (at)", node_count=1)
    world.commit(5, {"by_place": [Doc([{"type": "Point", "coordinates": [1, 2]}], "u1")]})
    with serving(world.views["n0"], load_settings()) as url:
        place = ("--within", "0,0,3,3")
        for more in ((), ("--count",), ("--all",)):
            given = scan(url, *place, "--srid", "4326", *more, index="by_place").stdout
            assert ("1 entries" if more == ("--count",) else "u1") in given
            told = scan(url, *place, "--srid", "0", *more, status=1, index="by_place").output
            assert "4326" in told
        assert "of a place" in scan(url, "--srid", "0", status=1, index="by_place").output


@pytest.mark.parametrize(
    "other",
    [
        *("--limit 5", "--offset 1", "--reverse", "--distinct", "--validate"),
        *("--all", "--form ndjson", "--to x", "--count"),
    ],
)
def test_what_does_not_go_with_the_nearest_is_told_in_the_words_of_the_command(node: str, other: str) -> None:
    """A node speaks of `limit` within `near`, which nobody has said here."""
    told = scan(node, "--near", "1,2", "--nearest", "50", *other.split(), status=1).output
    assert f"--nearest takes no {other.split()[0]}" in told
    assert "`limit`" not in told


BROKEN = [
    *(
        '["Bonn"',
        '["Bonn",]',
        "['Bonn', 3]",
        '["Bonn" 3]',
        '["Bonn", NaN]',
        '{"a": 1',
        '"Bonn',
        "[",
        "{",
        '"',
    ),
    *("007", "1,5", "1_000", "1.", ".5", "True", "FALSE", "Null", "-01", " [1"),
]
TEXTS = [
    *(
        "Bonn",
        "Zürich",
        "2024-01-05",
        "10.0.0.1",
        "12A",
        "12e999",
        "1e",
        "3f2c",
        "O'Hare",
        "a,b",
        "-x",
        "-",
        "NaN",
        "nullable",
    ),
    *("trueish", "1 2", "+5", "'x'", "", " ", "(1)", "Infinity"),
]


@pytest.mark.parametrize("option", ["--equals", "--low", "--high"])
@pytest.mark.parametrize("text", BROKEN)
def test_broken_json_is_no_text(node: str, option: str, text: str) -> None:
    """Taken as a text it would select nothing, without a word."""
    problem = json.loads(scan(node, f"{option}={text}", "--json", status=1).stdout)
    assert problem["type"] == "broken-json"
    assert option in problem["detail"]
    meant = shlex.split(problem["next_step"].rpartition("if a text is meant: ")[2])
    assert meant[0] == option
    assert json.loads(meant[1]) == text
    assert scan(node, f"{option}={meant[1]}", "--count").exit_code == 0


@pytest.mark.parametrize("text", TEXTS)
def test_plain_words_are_texts(text: str) -> None:
    assert _key("--equals", text) == [text]


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5), st.data())
def test_json_that_lost_a_character_is_no_text(value: Any, data: st.DataObject) -> None:
    """Whatever array somebody types: with a bracket, quote or comma too few it is refused, never a text."""
    text = json.dumps([value], ensure_ascii=False)
    assert _key("--low", text) == [value]
    at = data.draw(st.sampled_from([at for at, one in enumerate(text) if at and one in '[]",']))
    broken = text[:at] + text[at + 1 :]
    try:
        found = json.loads(broken)
    except ValueError:
        with pytest.raises(CallerError):
            _key("--low", broken)
    else:
        assert _key("--low", broken) == (found if isinstance(found, list) else [found])


def test_lines_of_json_on_standard_output(node: str) -> None:
    assert ids(scan(node, "--all").stdout) == IN_ORDER
    assert ids(scan(node, "--form", "ndjson").stdout) == IN_ORDER[:20]
    assert ids(scan(node, "--form", "ndjson", "--limit", "3", "--offset", "2").stdout) == IN_ORDER[2:5]


def test_one_document(node: str) -> None:
    for arguments in (("--all", "--json"), ("--all", "--form", "json")):
        document = json.loads(scan(node, *arguments).stdout)
        assert [row["id"] for row in document["rows"]] == IN_ORDER
        assert (document["snapshot"], document["page"]) == (5, None)
        assert document["session"]
    assert json.loads(scan(node, "--equals", "Nowhere", "--form", "json").stdout)["rows"] == []


def test_files(node: str, tmp_path: Path) -> None:
    lines, arrow = tmp_path / "rows.ndjson", tmp_path / "rows.arrow"
    assert scan(node, "--to", str(lines)).stdout == ""
    assert ids(lines.read_text()) == IN_ORDER, "a file is of all rows, unless --limit says"
    scan(node, "--form", "arrow", "--to", str(arrow))
    table = pa.ipc.open_stream(arrow.read_bytes()).read_all()
    assert table.column("id").to_pylist() == IN_ORDER
    assert table.column_names == ["city", "n", "id", "name"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.arrow", "rows.ndjson"]


def test_a_column_of_several_types_in_a_file(node: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.arrow"
    told = scan(node, "--form", "arrow", "--to", str(file), index="mixed").stderr
    assert "name holds several types" in told
    table = pa.ipc.open_stream(file.read_bytes()).read_all()
    assert table.num_rows == 2_001
    assert table.column("name").to_pylist()[-1] == "[1]"


def test_a_file_that_is_not_whole_has_no_name(node: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.ndjson"
    scan(node, "--to", str(file), "--at-least", '{"0": 6}', "--timeout", "50", status=1)
    assert list(tmp_path.iterdir()) == []
    told = json.loads(scan(node, "--json", "--to", str(tmp_path / "no" / "folder"), status=1).stdout)
    assert "cannot be written" in told["detail"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--all", "--limit", "3"), "against each other"),
        (("--spans", "nonsense"), "--spans is not JSON"),
        (("--spans", "{}"), "--spans must be an array"),
        (("--at-least", "[1]"), "--at-least must be an object"),
        (("--inclusion", "all"), "inclusion"),
        (("--validate",), "validate rows of users"),
        (("--count", "--limit", "3"), "--count takes no --limit"),
        (("--count", "--offset", "3", "--reverse"), "--count takes no --offset and no --reverse"),
        (("--count", "--validate", "--all"), "--count takes no --validate"),
        (("--count", "--form", "json", "--to", "rows"), "--count takes no --form and no --to"),
    ],
)
def test_what_it_refuses(node: str, arguments: tuple[str, ...], why: str) -> None:
    document: dict[str, Any] = json.loads(scan(node, *arguments, "--json", status=1).stdout)
    assert why in document["detail"]
    assert document["next_step"]
