"""What all tests share: a run in which a skipped test is a failure, an order that keeps all workers busy,
files that take turns by the day, ports that no other worker takes, and examples of Hypothesis that may take
their time.

With `KEYTIDE_NO_SKIPS=1` (CI), a run with any skipped test ends with exit status 1 and names them, so that a
part that is missing on the machine can never look like success; and Hypothesis tries the same examples in
every run, so that a failure comes from what was changed.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from deploy.process import port_range
from indexer.store.fold.worker import FoldWorker
from tests import share
from tests.waiting import slowness

REPOSITORY = Path(__file__).parents[1]
CACHES = frozenset({"__pycache__", ".hypothesis", ".pytest_cache", "build"})
"""What a test run may leave at the top of the repository, or what `make` puts there meanwhile."""
NO_SKIPS = os.environ.get("KEYTIDE_NO_SKIPS") == "1"
SHARING = ("acceptance", "acceptance_sources", "spark_source", "acceptance_16", "gateway", "clients")
"""Files of `integration/` that share a cluster: one after the other, or it would be started for each."""
LONGEST_FIRST = (
    *("crash_matrix", "replicas", "copies_interrupted", "stalls", "build_control", "disk", "acceptance_19"),
    *("rebuild", "several"),
    *("restarts", "acceptance_7", "verify", "origin", "range", "acceptance_8", "history"),
    *SHARING,
    *("backfill", "demo", "repair", "hot_slices", "catch_up", "bulk", "up", "standalone"),
    *("tour", "validation", "coordinator", "projector", "indexer", "scan_rollback"),
    *("page", "kafka_embedded"),
)
"""Files of `integration/` and `browser/`, by how long they take. A long one that comes last leaves the other
workers with nothing to do."""

OF_THE_REPOSITORY = frozenset(
    {"glossary", "kafka_clients", "pages", "patterns", "reference", "references", "rooms", "style", "unused"}
)
"""Files of `unit/` that read the whole repository: one worker does so, once (`test_style.nodes`)."""

TAKE_TURNS = (
    *("crash_matrix", "replicas", "copies_interrupted", "stalls", "build_control", "disk", "acceptance_19"),
    *("rebuild", "several"),
    *("restarts", "acceptance_7", "origin", "range", "acceptance_8", "history", "rollback_rebuild"),
    *(
        "hot_slices",
        "queue_bound",
        "catch_up",
        "standalone",
        "chaos",
        "lagging",
        "verify_waits",
        "tls_cluster",
    ),
    *("roles", "hash_index", "spatial_index"),
)
"""Files of `integration/` that strike at the real parts, or start a cluster of their own for one thing, the
longest first: a third of them has its turn on a day (ADR 26)."""

# Here, before any test module is read: `@settings` takes over what is loaded when it is written.
settings.register_profile(
    "keytide", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=NO_SKIPS
)
settings.load_profile("keytide")


def pytest_configure() -> None:
    """Each worker of pytest-xdist, and what it starts, has ports of its own. Brokers live too briefly to earn
    what the optimising compiler costs: half of their processor time."""
    os.environ.setdefault("KAFKA_JVM_PERFORMANCE_OPTS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        count = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        os.environ["KEYTIDE_PORTS"] = ports_of(int(worker.removeprefix("gw")), count)


def ports_of(worker: int, count: int) -> str:
    """A worker's part of the ports, in the words of `KEYTIDE_PORTS`. A worker that comes in the place of one
    that died has a number past the others': there are parts for as many again."""
    first, last = port_range()
    size = (last + 1 - first) // (2 * count)
    first += worker % (2 * count) * size
    return f"{first}-{first + size - 1}"


@pytest.fixture(scope="module")
def folds() -> Iterator[FoldWorker]:
    """What folds deltas of stores on disk, in a process of its own; starts another when that dies."""
    worker = FoldWorker()
    yield worker
    worker.close()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without collections of garbage: modules and tests stay, and are much to look through each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not any(".py" in argument for argument in config.args):  # who names a file wants it
        turns = {file: has_turn(file) for file in {item.path for item in items}}
        config.hook.pytest_deselected(items=[item for item in items if not turns[item.path]])
        items[:] = [item for item in items if turns[item.path]]
    places = {file: place(file) for file in {item.path for item in items}}
    items.sort(key=lambda item: places[item.path])
    for item in items if slowness() > 1 else ():
        marker = item.get_closest_marker("timeout")
        limit = float(marker.args[0] if marker else config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(limit * slowness()), append=False)


def pytest_collection_finish() -> None:
    """What all tests share stays to the end: collections of garbage need not look through it each time, nor
    be as many as they would be beside a small heap."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def has_turn(file: Path) -> bool:
    """Whether a test file is tried today."""
    name = file.stem.removeprefix("test_")
    takes_turns = file.parent.name == "integration" and name in TAKE_TURNS
    return not takes_turns or share.has_turn(TAKE_TURNS.index(name))


def place(file: Path) -> int:
    """Where the tests of a file stand in the order: those that read the whole repository come first and
    together, then files that are not listed, as they were."""
    name = file.stem.removeprefix("test_")
    if file.parent.name == "unit" and name in OF_THE_REPOSITORY:
        return -2
    listed = file.parent.name in ("integration", "browser") and name in LONGEST_FIRST
    return LONGEST_FIRST.index(name) if listed else -1


def _skipped(config: pytest.Config) -> list[str]:
    """Tests that were skipped in this run (by any worker), in the words of their reports; empty when skips
    are allowed."""
    if not NO_SKIPS:
        return []
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter is not None else []
    return [f"{report.nodeid}: {report.longrepr}" for report in reports]


def entries() -> frozenset[str]:
    """What stands at the top of the repository, apart from what test runs leave there by right."""
    return frozenset(os.listdir(REPOSITORY)) - CACHES


BEFORE = pytest.StashKey[frozenset[str]]()
"""`entries()` when the run began; the process that started the workers has it alone."""


def pytest_sessionstart(session: pytest.Session) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        session.config.stash[BEFORE] = entries()


def _left(config: pytest.Config) -> list[str]:
    """What this run has left at the top of the repository. A data folder there is found by the next run,
    which then fails for what the run before did."""
    if BEFORE not in config.stash:
        return []
    before = config.stash[BEFORE]
    return sorted(entries() - before)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        gc.freeze()  # pytest and Python look through all that is left six times over, and nobody hears of it
    failed = _skipped(session.config) or _left(session.config)
    if failed and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if skipped := _skipped(config):
        terminalreporter.section("skipped tests fail this run (KEYTIDE_NO_SKIPS=1)")
        for line in skipped:
            terminalreporter.line(line)
    if left := _left(config):
        terminalreporter.section("tests leave nothing in the repository; this run has left")
        for line in left:
            terminalreporter.line(line)
