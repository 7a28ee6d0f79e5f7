"""What the executors of a Spark cluster are told, and what local ones are not."""

from __future__ import annotations

import sys
from pathlib import Path

from keytide.settings.settings import load_settings
from streaming.spark import session as spark


def test_a_local_master_stays_on_loopback_and_needs_no_executors(tmp_path: Path) -> None:
    options = spark.session_options(load_settings(build={"spark_master": "local[2]"}), tmp_path)
    assert options["spark.driver.host"] == "127.0.0.1"
    assert not [name for name in options if name.startswith("spark.executor")]
    assert "spark.pyspark.python" not in options


def test_what_the_jvm_leaves_lies_in_the_drivers_folder(tmp_path: Path) -> None:
    """Nobody removes it from the system's temporary folder after kill -9."""
    options = spark.session_options(load_settings(build={"spark_master": "local[2]"}), tmp_path)
    assert f'"-Djava.io.tmpdir={tmp_path}"' in options["spark.driver.extraJavaOptions"]


def test_executors_of_a_cluster_are_told_what_settings_say(tmp_path: Path) -> None:
    build = {"spark_master": "spark://a:7077", "spark_options": {"spark.driver.host": "10.0.0.10"}}
    options = spark.session_options(load_settings(build=build), tmp_path)
    assert options["spark.master"] == "spark://a:7077"
    assert options["spark.driver.host"] == "10.0.0.10"
    assert "spark.driver.bindAddress" not in options
    assert options["spark.pyspark.python"] == sys.executable
    assert options["spark.executorEnv.PYTHONPATH"] == str(Path(spark.__file__).parents[2])
    more = {**build, "worker_python": "/opt/py/bin/python", "worker_path": "/opt/keytide"}
    options = spark.session_options(load_settings(build=more), tmp_path)
    assert options["spark.pyspark.python"] == "/opt/py/bin/python"
    assert options["spark.executorEnv.PYTHONPATH"] == "/opt/keytide"


def test_further_jars_come_beside_the_connector(tmp_path: Path) -> None:
    given = spark.connector({spark.JARS_VARIABLE: "/a.jar,/b.jar"}, "4.0.0", ("/jdbc.jar",))
    assert given == {"spark.jars": "/a.jar,/b.jar,/jdbc.jar"}
    fetched = spark.connector({}, "4.0.0", ("hdfs://h/jdbc.jar",))
    assert fetched["spark.jars"] == "hdfs://h/jdbc.jar"
    assert "spark-sql-kafka" in fetched["spark.jars.packages"]
    assert "spark.jars" not in spark.connector({}, "4.0.0")
