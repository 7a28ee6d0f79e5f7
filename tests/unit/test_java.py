"""Finding Java: versions as every vendor prints them, and messages that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.java import HOW_TO_INSTALL, Java, JavaError, find_java, major_version, parse_version, unusable

OPENJDK_17 = """openjdk version "17.0.15" 2025-04-15
OpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)
"""
ORACLE_8 = """java version "1.8.0_392"
Java(TM) SE Runtime Environment (build 1.8.0_392-b08)
"""


def fake_java(folder: Path, prints: str, status: int = 0) -> Path:
    """A `java` in `folder`/bin that prints `prints` to stderr; returns `folder`."""
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\n/bin/cat >&2 <<'END'\n{prints}\nEND\nexit {status}\n")
    script.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("output", "version", "major"),
    [
        (OPENJDK_17, "17.0.15", 17),
        (ORACLE_8, "1.8.0_392", 8),
        ('openjdk version "21" 2023-09-19\n', "21", 21),
        ('openjdk version "25-ea" 2025-09-16\n', "25-ea", 25),
        (
            'Picked up JAVA_TOOL_OPTIONS: -Dhttps.proxyHost=p\nopenjdk version "11.0.2" 2019-01-15\n',
            "11.0.2",
            11,
        ),
    ],
)
def test_version_is_parsed(output: str, version: str, major: int) -> None:
    assert parse_version(output) == version
    assert major_version(version) == major


@pytest.mark.parametrize(
    "output", ["", "The operation couldn't be completed. Unable to locate a Java Runtime.\n"]
)
def test_output_without_a_version(output: str) -> None:
    assert parse_version(output) is None


def test_not_a_version() -> None:
    with pytest.raises(ValueError, match="not a Java version"):
        major_version("jdk-17")


@pytest.mark.parametrize(
    ("version", "usable"), [("16.0.2", False), ("17", True), ("21.0.1", True), ("24", False)]
)
def test_range_that_will_do(version: str, usable: bool) -> None:
    assert (unusable(Java(Path("/java"), version, "PATH")) is None) is usable


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    first = fake_java(tmp_path / "first", OPENJDK_17)
    second = fake_java(tmp_path / "second", OPENJDK_17.replace("17.0.15", "21.0.1"))
    found = find_java({"JAVA_HOME": str(first), "PATH": str(second / "bin")})
    assert (found.version, found.source, found.home) == ("17.0.15", "JAVA_HOME", first.resolve())
    assert found.environment({"A": "b"}) == {"A": "b", "JAVA_HOME": str(first.resolve())}


def test_path_is_used_when_java_home_is_too_old(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", ORACLE_8)
    good = fake_java(tmp_path / "good", OPENJDK_17)
    assert find_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")}).source == "PATH"


def test_missing_java_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(JavaError, match="no java in JAVA_HOME or on PATH") as caught:
        find_java({"PATH": str(tmp_path)})
    assert caught.value.next_step == HOW_TO_INSTALL
    for line in ("apt-get install openjdk-17-jre-headless", "dnf install java-21", "brew install openjdk@21"):
        assert line in caught.value.next_step


def test_every_refused_candidate_is_named(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", ORACLE_8)
    with pytest.raises(JavaError) as caught:
        find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": str(old / "bin")})
    assert f"{tmp_path}/nowhere/bin/java (from JAVA_HOME) does not exist" in caught.value.message
    assert f"{old}/bin/java (from PATH) is Java 1.8.0_392: too old" in caught.value.message


def test_java_that_does_not_run_is_refused_with_its_own_words(tmp_path: Path) -> None:
    broken = fake_java(tmp_path / "broken", "Unable to locate a Java Runtime.", status=1)
    with pytest.raises(JavaError, match=r"does not run: Unable to locate a Java Runtime"):
        find_java({"JAVA_HOME": str(broken), "PATH": ""})
