"""The cache of Java parts: where it lies, when it counts as whole, and what a failed download says."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from deploy.jars import (
    CONFIGURATIONS,
    MANIFEST,
    JarsError,
    JavaParts,
    cache_folder,
    fetch,
    is_complete,
    jars_folder,
    proxy_options,
)
from tests.waiting import LIMIT_S, wait_for


def whole(folder: Path) -> Path:
    """A folder with one jar of 3 bytes per configuration, and its manifest."""
    for name in CONFIGURATIONS:
        (folder / name).mkdir(parents=True)
        (folder / name / "a.jar").write_bytes(b"abc")
    (folder / MANIFEST).write_text(json.dumps({name: {"a.jar": 3} for name in CONFIGURATIONS}))
    return folder


def test_cache_folder_by_environment() -> None:
    assert cache_folder({"KEYTIDE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/keytide")
    assert cache_folder({}) == Path.home() / ".cache" / "keytide"


def test_a_whole_folder_is_complete(tmp_path: Path) -> None:
    assert is_complete(whole(tmp_path / "jars"))


def test_other_parts_have_a_folder_and_a_measure_of_their_own(tmp_path: Path) -> None:
    ivy = tmp_path / "ivy.xml"
    ivy.write_text("<ivy-module/>")
    other = JavaParts(ivy, ("streams",), "a peer", 1)
    assert jars_folder(other).parent == jars_folder().parent
    assert jars_folder(other) != jars_folder()
    assert not is_complete(whole(tmp_path / "jars"), other)


@pytest.mark.parametrize(
    "damage", ["missing jar", "short jar", "no manifest", "half a manifest", "empty part"]
)
def test_a_damaged_folder_is_not(tmp_path: Path, damage: str) -> None:
    folder = whole(tmp_path / "jars")
    match damage:
        case "missing jar":
            (folder / "spark" / "a.jar").unlink()
        case "short jar":
            (folder / "broker" / "a.jar").write_bytes(b"ab")
        case "no manifest":
            (folder / MANIFEST).unlink()
        case "half a manifest":
            (folder / MANIFEST).write_text('{"broker": {"a.jar"')
        case _:
            (folder / MANIFEST).write_text(json.dumps({"broker": {"a.jar": 3}, "spark": {}}))
    assert not is_complete(folder)


def test_proxy_of_the_environment_becomes_java_options() -> None:
    env = {"HTTPS_PROXY": "http://proxy.example:3128", "NO_PROXY": "localhost, .corp.example"}
    assert proxy_options(env) == [
        "-Dhttps.proxyHost=proxy.example",
        "-Dhttps.proxyPort=3128",
        "-Dhttp.nonProxyHosts=localhost|*.corp.example",
    ]
    assert proxy_options({"https_proxy": "proxy.example:80"})[0] == "-Dhttps.proxyHost=proxy.example"
    assert proxy_options({**env, "JAVA_TOOL_OPTIONS": "-Dhttps.proxyHost=other"}) == []
    assert proxy_options({}) == []


def test_a_failed_download_says_what_to_do_and_leaves_nothing_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYTIDE_CACHE", str(tmp_path))
    monkeypatch.setenv("KEYTIDE_MAVEN_URL", (tmp_path / "empty-mirror").as_uri())
    with pytest.raises(JarsError, match="could not be fetched") as caught:
        fetch()
    assert "kafka_2.13" in caught.value.message
    for hint in ("proxy", "KEYTIDE_MAVEN_URL", str(jars_folder())):
        assert hint in caught.value.next_step
    assert not jars_folder().exists()
    assert list((tmp_path / "jars").glob("fetching-*")) == []


def test_a_killed_fetch_takes_ivy_with_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mirror:  # accepts, and never answers
        mirror.settimeout(LIMIT_S)
        url = f"http://127.0.0.1:{mirror.getsockname()[1]}/"
        env = {**os.environ, "KEYTIDE_CACHE": str(tmp_path), "KEYTIDE_MAVEN_URL": url}
        command = [sys.executable, "-m", "deploy.jars"]
        with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as fetcher:
            try:
                asking, _ = mirror.accept()
                (ivy,) = psutil.Process(fetcher.pid).children()
            finally:  # where nobody asked in time, the fetcher would be waited for without an end
                fetcher.send_signal(signal.SIGKILL)
        with asking:
            wait_for(
                lambda: not ivy.is_running() or ivy.status() == psutil.STATUS_ZOMBIE,
                "Ivy to end with its parent",
                20,
            )
