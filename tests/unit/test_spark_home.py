"""The folder of links that Spark drivers are started from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deploy import spark_home as module
from deploy.jars import pyspark_jars
from deploy.spark_home import LEFT_OUT, artifact, jars_of_drivers, spark_home


def test_jars_are_named_without_their_versions() -> None:
    names = {
        "netty-common-4.1.118.Final.jar": "netty-common",
        "netty-transport-native-epoll-4.1.118.Final-linux-x86_64.jar": "netty-transport-native-epoll",
        "log4j-1.2-api-2.24.3.jar": "log4j-1.2-api",
        "spark-core_2.13-4.0.4.jar": "spark-core_2.13",
        "chill_2.13-0.10.0.jar": "chill_2.13",
        "no-version.jar": "no-version",
    }
    assert {name: artifact(Path(name)) for name in names} == names


def test_a_jar_is_left_out_replaced_or_kept() -> None:
    bundled = [Path("jars", name) for name in ("zookeeper-3.9.3.jar", "lz4-java-1.8.0.jar", "py4j-0.10.jar")]
    newer = Path("new", "lz4-java-1.13.0.jar")
    assert jars_of_drivers(bundled, [newer]) == [newer, bundled[2]]


@pytest.mark.parametrize("beginning", LEFT_OUT)
def test_everything_that_is_left_out_is_in_pyspark(beginning: str) -> None:
    assert any(jar.name.startswith(beginning) for jar in pyspark_jars()), (
        "the list names what is no longer there"
    )


def test_the_folder_has_all_of_pyspark_and_fits_its_jars_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "pyspark"
    for name in ("bin", "jars"):
        (package / name).mkdir(parents=True)
    for name in ("zookeeper-3.9.3.jar", "lz4-java-1.8.0.jar", "py4j-0.10.jar"):
        (package / "jars" / name).touch()
    newer = tmp_path / "lz4-java-1.13.0.jar"
    newer.touch()
    monkeypatch.setenv("KEYTIDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "pyspark_jars", lambda: sorted((package / "jars").glob("*.jar")))
    monkeypatch.setattr(module, "jars_of", lambda _: [newer])
    home = spark_home()
    assert home == spark_home()
    assert (home / "bin").resolve() == package / "bin"
    assert {jar.resolve() for jar in (home / "jars").iterdir()} == {newer, package / "jars" / "py4j-0.10.jar"}
    os.utime(newer, (1, 1))
    assert spark_home() != home


def test_a_folder_goes_when_it_was_not_used_for_long_and_not_while_another_installation_is_at_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jars = tmp_path / "pyspark" / "jars"
    jars.mkdir(parents=True)
    monkeypatch.setenv("KEYTIDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "jars_of", lambda _: [])

    def home_of(version: int) -> Path:
        jar = jars / f"spark-core-{version}.0.jar"
        if not jar.exists():
            jar.touch()
        monkeypatch.setattr(module, "pyspark_jars", lambda: [jar])
        return spark_home()

    homes = [home_of(version) for version in range(2 * module.KEPT)]
    assert all(home.exists() for home in homes)
    for home in homes:
        os.utime(home, (0, 0))
    assert home_of(0) == homes[0]
    assert [home.exists() for home in homes].count(True) == module.KEPT
    assert homes[0].exists(), "it has been used since"
