"""Where the archive of Spark's classes is, and when a driver is given one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from deploy import archive
from deploy.java import Java, JavaError
from streaming.spark.session import ARCHIVE_VARIABLE, sharing

JAVA = Java(Path("/usr/bin/java"), "17.0.15", "PATH")
NAME = "spark.driver.extraJavaOptions"


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(archive, "spark_home", lambda: tmp_path / "home")


def test_each_java_and_folder_of_jars_has_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KEYTIDE_CACHE", str(tmp_path))
    first = archive.archive_file(JAVA)
    assert first == archive.archive_file(JAVA)
    assert first.parent == tmp_path / "classes"
    assert archive.archive_file(replace(JAVA, version="21.0.1")) != first
    monkeypatch.setattr(archive, "spark_home", lambda: tmp_path / "another")
    assert archive.archive_file(JAVA) != first


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
