"""The command over HTTP: what people see, what programs read, exit statuses, coordinators that are away."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from importlib import import_module
from typing import Any

import httpx
import pytest
from typer.testing import Result

from keytide.cli import output
from keytide.cli import rendering as looks
from keytide.cli.admin import Admin, find_urls
from keytide.cli.options import DEFAULT_DATA_DIR
from keytide.cli.output import out, readable, size
from keytide.errors import CallerError, RetryableError
from tests.browser.scene import NODES, busy_day, served
from tests.reference.commands import every_command
from tests.unit.command import run_command

command_modules = [import_module(f"keytide.cli.{name}") for name in ("app", "calls", "rendering")]
"""Those that print tables. (The package shows the application by the name of its module.)"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(busy_day()) as url:
        yield url


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A console that is wide enough for every column, whatever terminal the tests run in."""
    monkeypatch.setattr(out, "_width", 200)


def run(*arguments: str, status: int = 0) -> Result:
    result = run_command(arguments)
    assert result.exit_code == status, result.output
    return result


def run_json(*arguments: str, status: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", status=status).stdout)


LISTS = {"indexes": ("index", "list"), "builds": ("build", "list"), "nodes": ("node", "list")}


def test_lists_are_the_servers_documents(address: str) -> None:
    assert {one["name"] for one in run_json("index", "list", "--url", address)} >= {"by_tail", "by_carrier"}
    assert {one["id"] for one in run_json("node", "list", "--url", address)} == set(NODES)
    assert {one["state"] for one in run_json("build", "list", "--url", address)} >= {"READY", "FAILED"}
    status = run_json("status", "--url", address, status=1)  # an index has failed
    assert {*status} == {"health", "coordinators", "stability", *LISTS}
    assert status["coordinators"] == [{"url": address, "state": "leads"}]
    assert status["health"]["status"] == "failing"
    assert "by_tail" in json.dumps(status["health"]["reasons"])
    for name, command in LISTS.items():
        assert len(status[name]) == len(run_json(*command, "--url", address))


def test_people_read_units(address: str) -> None:
    text = run("index", "list", "--url", address).stdout
    assert "MiB" in text
    assert "by_destination" in text
    shown = run("index", "show", "by_destination", "--url", address).stdout
    created = run_json("index", "show", "by_destination", "--url", address)["created_at"]
    assert str(created) not in shown
    assert f"{created:,}" not in shown
    told = run("status", "--url", address, status=1).stdout
    assert "READY" in told
    assert "The cluster: failing" in told
    assert "keytide index build by_tail" in " ".join(told.split())
    assert "by_tail" in run("build", "show", "b5", "--url", address).stdout


NOT_IN_IT = "1 documents (not-json), 2 documents for which the condition is not true"


@pytest.mark.parametrize("width", [60, 80, 100, 132, 250])
@pytest.mark.parametrize(
    "command",
    [("index", "list"), ("build", "list"), ("node", "list"), ("status",), ("topology",)],
)
def test_tables_fit_the_terminal_and_break_no_word(
    address: str, monkeypatch: pytest.MonkeyPatch, width: int, command: tuple[str, ...]
) -> None:
    cells: list[object] = []
    drawn = output.table

    def drawing(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], **options: Any) -> None:
        cells.extend((*columns, *(cell for row in rows for cell in row)))
        drawn(title, columns, rows, **options)

    monkeypatch.setattr(out, "_width", width)
    for module in command_modules:
        monkeypatch.setattr(module, "table", drawing)
    text = run(*command, "--url", address, status=int(command == ("status",))).stdout
    assert max(map(len, text.splitlines())) <= width
    assert cells
    for word in (word for cell in cells for word in output._cell(cell).split()):
        assert word in text or len(word) > width // 2, f"{word} is broken"


@pytest.mark.parametrize("width", [80, 120])
def test_a_table_that_has_no_room_is_written_in_blocks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setattr(out, "_width", width)
    columns = [f"column_{at}" for at in range(9)]
    output.table("Of nine", columns, [[f"{row}-{at}" for at in range(9)] for row in range(3)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "Of nine"
    blocks = [line.split() for line in lines[1:]]
    if width == 80:
        assert blocks[:9] == [[f"column_{at}", f"0-{at}"] for at in range(9)]
        assert blocks[9] == []
        assert blocks[10] == ["column_0", "1-0"]
    else:
        assert any(line.count("1-") == 9 for line in lines)


def test_events_and_topology(address: str) -> None:
    events = run_json("events", "--url", address)
    assert {"number", "at", "level", "kind", "subject", "text"} <= {*events[0]}
    shown = run("events", "--url", address).stdout
    assert all(line["kind"] in shown for line in events)
    topology = run_json("topology", "--url", address)
    assert {one["name"] for one in topology["indexes"]} >= {"by_destination"}
    assert "node-1" in run("topology", "--url", address).stdout


def test_events_are_followed_each_once(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks_taken: list[float] = []

    def sleep(seconds: float) -> None:
        looks_taken.append(seconds)
        if len(looks_taken) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("keytide.cli.admin.time.sleep", sleep)
    lines = run("events", "--follow", "--json", "--url", address, status=130).stdout.splitlines()
    numbers = [json.loads(line)["number"] for line in lines]
    assert numbers == list(range(1, len(numbers) + 1)), "each once, in order"
    known = [line["number"] for line in run_json("events", "--url", address)]
    assert numbers == known[: len(numbers)]  # more may have happened since
    assert numbers


def test_rollbacks_and_lost_slices_are_shown_with_what_mends_them(capsys: pytest.CaptureFixture[str]) -> None:
    last = {"text": "flights is rolled back (incarnation 1) to snapshot 7 [partition 0]", "at": 1}
    keyspace = {"snapshot": 9, "staleness_ms": 5, "lag_documents": 0, "issuing": True, "rollbacks": 1}
    late = [{"node": "n1", "index": "i-1", "slice": 2}]
    looks.show_stability(
        {"term": 3, "keyspaces": {"flights": {**keyspace, "last_rollback": last, "lagging": late,
                                              "examining": ["a projector says so"]}}}
    )  # fmt: skip
    told = capsys.readouterr().out.replace("\n", " ")
    assert "rolled back (incarnation 1) to snapshot 7 [partition 0]" in told
    assert "being examined: a projector says so" in told
    assert "slice 2 of i-1 on node n1 lags" in told
    fine = {"slice": 0, "node": "n1", "state": "LIVE", "reason": "", "rebuild": None}
    lost = {"slice": 1, "node": "n2", "state": "LOST", "reason": "page 7", "rebuild": "b9", "undo_steps": 4}
    looks.show_troubles({"indexes": [{"name": "by_tail", "slices": [fine]}]})
    assert capsys.readouterr().out == ""
    looks.show_troubles({"indexes": [{"name": "by_tail", "slices": [fine, lost]}]})
    told = capsys.readouterr().out
    assert all(word in told for word in ("by_tail", "LOST", "page 7", "b9"))
    assert "n1" not in told
    looks.show_index({"name": "by_tail", "lost": [1], "rebuilds": ["b9"], "slice_states": [fine, lost]})
    assert "slices 1 are rebuilt by b9" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("bytes", 1023, "1023 B"),
        ("bytes", 1536, "1.5 KiB"),
        ("disk_free", 5 << 40, "5.0 TiB"),
        ("entries", 5 << 40, 5 << 40),
        ("finished_at", None, None),
        ("live", True, True),
        ("timestamp", {"0": {"offset": 7, "epoch": 0}, "1": {"offset": 9, "epoch": -1}}, "0:7 1:9"),
        ("left_out", {"leading-key-missing": 3_000}, "3,000 documents without the leading key"),
        ("left_out_by_build", {"not-json": 1, "where-not-true": 2}, NOT_IN_IT),
        ("left_out", {"by_city": {"not-json": 1}, "by_age": {}}, "by_city: 1 documents (not-json)"),
        ("left_out", {}, "none"),
    ],
)
def test_units(name: str, value: object, shown: object) -> None:
    assert readable(name, value) == shown


def test_moments_are_local_time_with_its_offset() -> None:
    assert str(readable("created_at", 1_795_254_157_923)).startswith("2026-11-2")
    assert size(0) == "0 B"


def test_errors_say_what_to_do_and_end_with_1(address: str) -> None:
    problem = run_json("index", "show", "nosuch", "--url", address, status=1)
    assert (problem["type"], problem["status"]) == ("index-not-found", 404)
    assert problem["next_step"]
    told = run("index", "show", "nosuch", "--url", address, status=1).stderr
    assert "what to do:" in told
    assert run_json("build", "show", "nosuch", "--url", address, status=1)["next_step"]
    run("index", "show", status=2)


@pytest.mark.parametrize("what", ["skipped", "violations"])
def test_lists_of_nodes_that_do_not_answer(address: str, what: str) -> None:
    with closing(Admin(address)) as admin, pytest.raises(RetryableError, match="holds slices") as caught:
        admin.call("GET", f"/v1/indexes/by_carrier/{what}")
    assert (caught.value.problem_type, caught.value.status) == ("node-unavailable", 503)
    assert "node list" in caught.value.next_step
    with closing(Admin(address)) as admin, pytest.raises(CallerError) as refused:
        admin.call("GET", f"/v1/indexes/by_carrier/{what}", page="?")
    assert refused.value.problem_type == "bad-page"
    with closing(Admin(address)) as admin, pytest.raises(CallerError) as unknown:
        admin.call("GET", f"/v1/indexes/nosuch/{what}")
    assert unknown.value.status == 404


@pytest.mark.parametrize("url", ["nonsense", "http:" + "//[", "http://127.0.0.1:1", "http://127.0.0.1:x"])
@pytest.mark.parametrize("command", [("index", "list"), ("sql", "DROP INDEX x"), ("scan", "x")])
def test_an_address_where_nothing_answers(url: str, command: tuple[str, ...]) -> None:
    assert run_json(*command, "--url", url, status=1)["next_step"]


def test_a_server_that_is_no_coordinator(address: str) -> None:
    assert run_json("index", "list", "--url", f"{address}/page/page.js?", status=1)["detail"]
    with closing(Admin(address)) as admin, pytest.raises(CallerError, match="not a coordinator"):
        admin.call("GET", "/")


def test_a_coordinator_may_be_away_while_a_build_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin("http://127.0.0.1:1")
    answers: list[Any] = [RetryableError("away"), {"state": "BACKFILL"}, RetryableError("away")]
    answers.append({"state": "READY", "documents_done": 5})
    times = iter(range(0, 10_000, 10))

    def call(*_: object) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"indexes": ["a"], **answer}

    monkeypatch.setattr(admin, "call", call)
    monkeypatch.setattr("keytide.cli.admin.time.sleep", lambda _: None)
    monkeypatch.setattr("keytide.cli.admin.time.monotonic", lambda: next(times))
    assert admin.wait_for_build("b1", quiet=True)["state"] == "READY"
    answers += [RetryableError("away")] * 100
    with pytest.raises(RetryableError):
        admin.wait_for_build("b1", quiet=True)
    assert 0 < len(answers) < 99
    answers[:] = [{"state": "FAILED", "error": "the reason"}]
    with pytest.raises(CallerError, match="the reason"):
        admin.wait_for_build("b1", quiet=True)


def test_the_token_of_the_environment_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(busy_day(security={"tokens": {"secret": ["read"]}})) as url:
        assert run_json("index", "list", "--url", url, status=1)["status"] == 401
        monkeypatch.setenv("KEYTIDE_TOKEN", "secret")
        assert run_json("index", "list", "--url", url)
        assert run_json("sql", "DROP INDEX by_tail", "--url", url, status=1)["status"] == 403
        assert httpx.get(f"{url}/healthz").status_code == 200


def test_where_the_cluster_is(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_urls(None, DEFAULT_DATA_DIR) == ["http://127.0.0.1:8091"]
    with pytest.raises(CallerError, match="there is no cluster in"):
        find_urls(None, tmp_path)
    (tmp_path / "cluster.json").write_text('{"coordinator": "http://127.0.0.1:5"}')
    assert find_urls(None, tmp_path) == ["http://127.0.0.1:5"]
    (tmp_path / "cluster.json").write_text(
        '{"coordinator": "http://127.0.0.1:5", "coordinators": ["http://127.0.0.1:5", "http://127.0.0.1:4"]}'
    )
    assert find_urls(None, tmp_path) == ["http://127.0.0.1:5", "http://127.0.0.1:4"]
    monkeypatch.setenv("KEYTIDE_URL", "http://127.0.0.1:6")
    assert find_urls(None, tmp_path) == ["http://127.0.0.1:6"]
    assert find_urls("http://127.0.0.1:7, http://127.0.0.1:8", tmp_path) == [
        "http://127.0.0.1:7",
        "http://127.0.0.1:8",
    ]


def test_every_command_that_takes_a_data_folder_reads_the_variable() -> None:
    """`keytide down` said that no cluster ran on a folder that `keytide status` talked to."""
    folders = [
        (path, option.envvar)
        for path, command in every_command()
        for option in command.params
        if "--data-dir" in option.opts
    ]
    assert len(folders) > 20
    assert {path for path, variable in folders if variable != "KEYTIDE_DATA_DIR"} == set()
