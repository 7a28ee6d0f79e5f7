"""Commands that come by entry points, and what an `import keytide` brings."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from keytide.cli import app, plug_ins
from keytide.cli.plug_ins import GROUP

SERVER = ("uvicorn", "fastapi", "lmdb", "confluent_kafka", "kafka", "pyspark")
OURS = ("serving", "kafka", "wire", "settings", "process", "cli")


def hello(name: str, twice: bool = False) -> None:
    """Greet somebody."""
    for _ in range(1 + twice):
        typer.echo(f"hello {name}")


def run(monkeypatch: pytest.MonkeyPatch, brought: dict[str, str], *words: str) -> Any:
    entries = [EntryPoint(name, value, GROUP) for name, value in brought.items()]
    monkeypatch.setattr(plug_ins, "entry_points", lambda group: entries if group == GROUP else [])
    return CliRunner().invoke(app, words)


def test_the_commands_of_deploy_are_found() -> None:
    listed = CliRunner().invoke(app, ["--help"]).output
    for name in ("up", "down", "demo", "doctor", "trace", "gateway"):
        assert f" {name} " in listed
        assert CliRunner().invoke(app, [name, "--help"]).exit_code == 0


def test_a_package_brings_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    brought = {"hello": f"{__name__}:hello", "scan": f"{__name__}:hello"}
    listed = run(monkeypatch, brought, "--help").output
    assert "Greet somebody." in listed
    greeted = run(monkeypatch, brought, "hello", "--twice", "Ada")
    assert (greeted.exit_code, greeted.output) == (0, "hello Ada\nhello Ada\n")
    assert "--prefix" in run(monkeypatch, brought, "scan", "--help").output  # ours stay ours
    assert "Did you mean 'hello'?" in run(monkeypatch, brought, "helo").output


@pytest.mark.parametrize(
    ("value", "why"),
    [("no_such_package:run", "ModuleNotFoundError"), ("json:no_such_function", "AttributeError")],
)
def test_a_broken_plug_in_is_told(monkeypatch: pytest.MonkeyPatch, value: str, why: str) -> None:
    brought = {"broken": value}
    listed = run(monkeypatch, brought, "--help")
    assert listed.exit_code == 0
    assert "cannot be loaded" in listed.output
    called = run(monkeypatch, brought, "broken", "more", "--words")
    assert called.exit_code == 1
    told = " ".join(called.output.split())
    assert f"{value} cannot be loaded: {why}" in told
    assert "install Keytide anew" in told


def test_the_absence_of_plug_ins_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    called = run(monkeypatch, {}, "up")
    assert called.exit_code == 2
    told = " ".join(called.output.replace("│", " ").split())
    assert "No such command 'up'. No package brings commands" in told
    assert "install Keytide anew" in told


@pytest.mark.parametrize("what", ["from keytide import AsyncClient, Client, Writes", "import keytide"])
def test_keytide_brings_the_client_and_nothing_of_a_server(what: str) -> None:
    listed = f"{what}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert loaded.isdisjoint({*SERVER, *(f"keytide.{room}" for room in OURS)})


def test_help_loads_nothing_that_asks_a_server() -> None:
    """It took half as long again: an HTTP client, with a command of its own, and what looks at processes."""
    asked = (
        "import sys\nfrom keytide.cli import app\nsys.argv = ['keytide', '--help']\n"
        "try:\n    app()\nexcept SystemExit:\n    print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert "Usage: keytide" in done.stdout
    loaded = set(done.stdout.split())
    assert "keytide.cli.app" in loaded
    assert loaded.isdisjoint({*SERVER, "httpx", "psutil"})
