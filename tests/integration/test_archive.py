"""The archive of the classes of Spark's JVM: a driver that is given it takes most of them from there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.archive import make
from deploy.spark_home import spark_environment
from streaming.spark.session import ARCHIVE_VARIABLE

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(400)]

START = """
import sys
from pathlib import Path
from keytide.settings.settings import load_settings
from streaming.spark.session import session_options, start_session
options = session_options(load_settings(build={"spark_master": "local[1]"}), Path(sys.argv[1]))
options["spark.driver.extraJavaOptions"] += f" -Xlog:class+load:file={sys.argv[1]}/classes.log"
start_session(options).stop()
"""


@pytest.mark.parametrize("archived", [True, False])
def test_a_driver_takes_its_classes_from_the_archive(tmp_path: Path, archived: bool) -> None:
    environment = {**os.environ, **spark_environment()}
    environment[ARCHIVE_VARIABLE] = str(make() if archived else tmp_path / "none")
    command = [sys.executable, "-c", START, str(tmp_path)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "cds" not in run.stdout + run.stderr
    loaded = (tmp_path / "classes.log").read_text().splitlines()
    taken = sum("shared objects file (top)" in line for line in loaded)
    assert taken > 5_000 if archived else not taken, f"{taken} of {len(loaded)}"
