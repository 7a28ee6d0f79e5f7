"""What all tests share: a run in which a skipped test is a failure.

With `KEYTIDE_NO_SKIPS=1` (CI), a run with any skipped test ends with exit status 1 and names them, so that a
part that is missing on the machine can never look like success.
"""

from __future__ import annotations

import os

import pytest


def _skipped(config: pytest.Config) -> list[str]:
    """Tests that were skipped in this run (by any worker), in the words of their reports; empty when skips
    are allowed."""
    if os.environ.get("KEYTIDE_NO_SKIPS") != "1":
        return []
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter is not None else []
    return [f"{report.nodeid}: {report.longrepr}" for report in reports]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _skipped(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if skipped := _skipped(config):
        terminalreporter.section("skipped tests fail this run (KEYTIDE_NO_SKIPS=1)")
        for line in skipped:
            terminalreporter.line(line)
