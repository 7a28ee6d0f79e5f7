"""How the driver of a sample ends: which errors another start may mend."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from keytide.catalog.records import BuildRecord
from keytide.errors import KeytideError
from keytide.settings.settings import Settings
from keytide.wire.messages import BuildSampled
from streaming.core import micro_batches as core
from streaming.drivers import lifecycle
from streaming.drivers.failures import BuildImpossibleError
from streaming.sample import __main__ as driver
from streaming.stages.source_reader import OffsetsLostError
from tests.unit.test_build_sampling import waiting


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OffsetsLostError("the log has not all of it any more"), core.EXIT_RETRY),
        (
            RuntimeError("PythonException: streaming.stages.source_reader.OffsetsLostError: [0, 5)"),
            core.EXIT_RETRY,
        ),
        (BuildImpossibleError("topic users does not exist"), core.EXIT_NEVER),
    ],
)
def test_blocks_that_retention_took_away_are_sampled_again(
    error: KeytideError | RuntimeError, status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Follower:
        def __init__(self, settings: Settings) -> None: ...

        def close(self) -> None: ...

    def sampled(self: Any, build: BuildRecord) -> BuildSampled:
        raise error

    monkeypatch.setattr(driver, "MetadataFollower", Follower)
    monkeypatch.setattr(lifecycle, "DriverReporter", Mock())
    monkeypatch.setattr(driver.SampleDriver, "_wanted", lambda self: None)
    monkeypatch.setattr(driver.SampleDriver, "_sampled", sampled)
    made = driver.SampleDriver(Settings(cluster="test", data_dir=tmp_path), "b1", threading.Event())
    assert made.run() == status


def test_a_report_says_which_splits_were_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An index may be altered while it is sampled."""
    world = waiting()
    build, index = world.build("b8"), world.index("by_age")
    catalog = world.leader.dictionary.catalog
    made = driver.SampleDriver(Settings(cluster="test", data_dir=tmp_path), "b8", threading.Event())
    made._metadata = Mock(catalog=lambda: catalog)
    monkeypatch.setattr(made, "_offsets", lambda build: ({0: 5}, {0: 5}))
    report = made._sampled(build)
    assert report.wanted == {index.id: "2 splits of age"} == {index.id: index.definition.wanted_splits}
    hashed = replace(index.definition, partition_kind="hash")
    assert (hashed.wanted_splits, replace(index.definition, slices=1).wanted_splits) == ("", "")
