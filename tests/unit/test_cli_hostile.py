"""Whatever is given to the command: an error that is understood, or a usage message; never a traceback."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from typer.testing import Result

from deploy.process import free_ports
from deploy.up import UpOptions, only_one, remembered
from keytide.cli.admin import rest
from keytide.errors import CallerError, ConfigurationError
from keytide.process.private_files import private_folder
from keytide.settings.names import OTHER_VARIABLES
from keytide.settings.settings import load_settings
from tests.unit.command import run_command

NASTY = [
    "a/b?c#d",
    "..",
    "%2e%2e",
    "",
    " ",
    "a b",
    "ä",
    "\udcff",
    "a\nb",
    "a\x00b",
    "x" * 5_000,
    "*",
    "'",
    '"',
    "-",
]
HTTP = "http:" + "//"
COMMANDS = [
    ["index", "show", "{}"],
    ["index", "drop", "{}"],
    ["index", "build", "{}"],
    ["index", "verify", "{}"],
    ["index", "repair", "{}"],
    ["index", "skipped", "{}"],
    ["index", "violations", "{}"],
    ["index", "load", "{}"],
    *(["build", action, "{}"] for action in ("show", "wait", "cancel", "pause", "resume")),
    ["build", "throttle", "{}", "100"],
    ["job", "show", "{}"],
    ["job", "report", "{}"],
    ["job", "cancel", "{}"],
    ["sql", "CREATE INDEX {} ON k (a)"],
]


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("KEYTIDE_TOKEN", raising=False)
    monkeypatch.setenv("KEYTIDE_GIVE_UP_S", "0.1")
    monkeypatch.setattr("keytide.client.protocol.calls.FIRST_PAUSE_S", 0.001)
    return f"http://127.0.0.1:{free_ports()[0]}"


def understood(result: Result) -> None:
    assert result.exit_code in (1, 2), result.output
    assert isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_names_that_nobody_would_choose(nowhere: str, command: list[str]) -> None:
    for name in NASTY:
        arguments = [part.replace("{}", name) for part in command]
        understood(run_command([*arguments, "--url", nowhere]))


@pytest.mark.parametrize("name", NASTY)
def test_scans_of_such_names(nowhere: str, name: str) -> None:
    understood(run_command(["scan", name, "--node", nowhere]))
    understood(run_command(["sql", f"SELECT {name} FROM", "--node", nowhere]))


@pytest.mark.parametrize("token", ["tök", "a\nb", "a\r\nX-Other: b", " a", "\udcff"])
def test_tokens_that_no_header_holds(nowhere: str, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("KEYTIDE_TOKEN", token)
    for arguments in (["index", "list", "--url", nowhere], ["scan", "x", "--node", nowhere]):
        result = run_command(arguments)
        understood(result)
        assert "the API token holds characters" in " ".join(result.output.split())


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:99999", "http://", "x", f"{HTTP}[::1", "ftp://h", f"{HTTP}a b"]
)
def test_addresses_that_are_none(nowhere: str, url: str) -> None:
    understood(run_command(["index", "list", "--url", url]))
    understood(run_command(["scan", "x", "--node", url]))


@pytest.mark.parametrize(
    "options",
    [
        ["--port", "-1"],
        ["--port", "65536"],
        ["--node-port", "-1"],
        ["--nodes", "0"],
        ["--cluster", "a b"],
        ["--cluster", "x" * 300],
        ["--cluster", ".."],
        ["--cluster", ""],
        ["--data-dir", "/proc/nothing/here"],
    ],
    ids=" ".join,
)
def test_a_cluster_that_cannot_be(tmp_path: Path, options: list[str]) -> None:
    given = options if "--data-dir" in options else ["--data-dir", str(tmp_path / "data"), *options]
    understood(run_command(["up", *given]))
    assert not (tmp_path / "data" / "kafka").exists()


def test_names_are_quoted_in_paths() -> None:
    assert rest("indexes", "a/b?c#d", "verify") == "/v1/indexes/a%2Fb%3Fc%23d/verify"


def test_an_empty_text_is_not_the_path_of_something_else() -> None:
    with pytest.raises(CallerError, match="no name"):
        rest("indexes", "")


def test_a_folder_without_a_cluster_is_said(tmp_path: Path) -> None:
    """And not another cluster asked that listens on the usual port."""
    for arguments in (["index", "list"], ["scan", "x"], ["sql", "SELECT 1"]):
        result = run_command([*arguments, "--data-dir", str(tmp_path / "typo")])
        understood(result)
        assert "there is no cluster in" in " ".join(result.output.split())


def test_a_folder_whose_cluster_does_not_run_is_said(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"pid": 1, "started_at": 1, "coordinator": "http://127.0.0.1:1"}')
    result = run_command(["index", "list", "--data-dir", str(tmp_path)])
    understood(result)
    assert "does not run" in " ".join(result.output.split())


def test_the_release_is_printed() -> None:
    result = run_command(["--version"])
    assert result.exit_code == 0
    assert result.output.startswith("keytide 0.")


def test_a_failed_statement_in_a_pipe_is_a_failure(nowhere: str) -> None:
    assert run_command(["sql", "--url", nowhere], input="DROP INDEX a;\n").exit_code == 1
    assert run_command(["sql", "--url", nowhere], input=b"\xff;\n").exit_code == 1
    assert run_command(["sql", "--url", nowhere], input="\n ;\n").exit_code == 0


# --- what a folder remembers -----------------------------------------------------------------------------


def noted(folder: Path, **more: object) -> Path:
    import json

    ports = {"coordinator": 7001, "node-1": 7002, "node-2": 7003, "node-3": 7004, "projector-1-metrics": 7005}
    state = {"cluster": "mine", "ports": ports, "kafka": "k:9092", **more}
    (folder / "cluster.json").write_text(json.dumps(state))
    return folder


def test_a_new_folder_gets_the_usual(tmp_path: Path) -> None:
    assert remembered(UpOptions(tmp_path)) == UpOptions(tmp_path, None, 2, 1, "keytide", 8091, 8093)


def test_a_folder_remembers_its_cluster(tmp_path: Path) -> None:
    found = remembered(UpOptions(noted(tmp_path)))
    assert found == UpOptions(tmp_path, "k:9092", 3, 1, "mine", 0, 0, coordinators=1)
    assert remembered(UpOptions(tmp_path, nodes=4, port=99)).nodes == 4
    assert remembered(UpOptions(tmp_path, port=99)).port == 99


@pytest.mark.parametrize("given", [{"nodes": 2}, {"cluster": "other"}])
def test_what_it_cannot_become_is_refused(tmp_path: Path, given: dict[str, object]) -> None:
    with pytest.raises(CallerError, match="the cluster in"):
        remembered(UpOptions(noted(tmp_path), **given))  # type: ignore[arg-type]


def test_queues_do_not_move_to_another_kafka(tmp_path: Path) -> None:
    (noted(tmp_path) / "kafka").mkdir()
    with pytest.raises(CallerError, match="its own Kafka"):
        remembered(UpOptions(tmp_path, kafka="other:9092"))
    assert remembered(UpOptions(tmp_path)).kafka is None


def test_one_folder_has_one_cluster(tmp_path: Path) -> None:
    with (
        only_one(tmp_path),
        pytest.raises(CallerError, match=f"as process {os.getpid()}"),
        only_one(tmp_path),
    ):
        pass
    with only_one(tmp_path):
        pass


# --- settings and files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("KEYTIDE_INDEXER__PROT", "1", "Did you mean port?"),
        ("KEYTIDE_INDEXR__PORT", "1", "Did you mean KEYTIDE_INDEXER?"),
        ("KEYTIDE_INDEXER__PORT", "many", "docs/reference/settings.md"),
        ("KEYTIDE_CLUSTER", "a b", "docs/reference/settings.md"),
        ("KEYTIDE_INDEXER__ZONE", "rack 7", "docs/reference/settings.md"),
        ("KEYTIDE_INDEXER__ZONE", "z" * 41, "docs/reference/settings.md"),
    ],
)
def test_settings_that_there_are_not(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as refused:
        load_settings()
    assert said in refused.value.next_step


def test_sections_of_the_file_that_there_are_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "keytide.toml"
    monkeypatch.setenv("KEYTIDE_CONFIG", str(file))
    file.write_text("[secrity]\n")
    with pytest.raises(ConfigurationError) as refused:
        load_settings()
    assert "Did you mean security?" in refused.value.next_step
    file.write_text("[security\n")
    with pytest.raises(ConfigurationError, match="is no TOML"):
        load_settings()


def test_variables_that_are_no_settings_are_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OTHER_VARIABLES - {"KEYTIDE_CONFIG"}:
        monkeypatch.setenv(name, "1")
    load_settings()


def test_a_folder_of_an_earlier_release_is_taken_back(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "node").mkdir(parents=True)
    (folder / "node" / "file").write_text("")
    for path in (folder, folder / "node"):
        path.chmod(0o755)
    (folder / "node" / "file").chmod(0o644)
    private_folder(folder, "--data-dir")
    modes = [
        stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "node", folder / "node" / "file")
    ]
    assert modes == [0o700, 0o700, 0o600]
