"""Where the archive of Spark's classes is, and when a driver is given one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from deploy import archive, jars
from deploy.java import Java, JavaError
from streaming.spark import ARCHIVE_VARIABLE, sharing

JAVA = Java(Path("/usr/bin/java"), "17.0.15", "PATH")
NAME = "spark.driver.extraJavaOptions"


def test_each_java_and_each_pyspark_has_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KEYTIDE_CACHE", str(tmp_path))
    first = archive.archive_file(JAVA)
    assert first == archive.archive_file(JAVA)
    assert first.parent == tmp_path / "classes"
    assert archive.archive_file(replace(JAVA, version="21.0.1")) != first
    monkeypatch.setattr(archive, "pyspark_jars", list)
    assert archive.archive_file(JAVA) != first


def test_pysparks_jars_are_told_apart_by_their_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "__init__.py").touch()
    (tmp_path / "jars").mkdir()
    jar = tmp_path / "jars" / "a.jar"
    jar.touch()
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})()
    monkeypatch.setattr(jars, "find_spec", lambda _: spec)
    before = archive.archive_file(JAVA)
    os.utime(jar, (1, 1))
    assert archive.archive_file(JAVA) != before


def test_one_that_was_not_made_is_no_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KEYTIDE_CACHE", str(tmp_path))
    monkeypatch.setattr(archive, "find_java", lambda: JAVA)
    assert archive.made_archive() is None
    file = archive.archive_file(JAVA)
    file.parent.mkdir(parents=True)
    file.touch()
    assert archive.made_archive() == file

    def none() -> Java:
        raise JavaError("no Java here")

    monkeypatch.setattr(archive, "find_java", none)
    assert archive.made_archive() is None


def test_a_driver_is_given_one_that_is_there(tmp_path: Path) -> None:
    file = tmp_path / "with a blank.jsa"
    assert sharing({ARCHIVE_VARIABLE: str(file)}, {NAME: "-Xa"}) == {}
    assert sharing({}, {NAME: "-Xa"}) == {}
    file.touch()
    given = sharing({ARCHIVE_VARIABLE: str(file)}, {NAME: "-Xa"})[NAME]
    assert given.startswith(f'-Xa "-XX:SharedArchiveFile={file}"')
