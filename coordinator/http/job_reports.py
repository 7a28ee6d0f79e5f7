"""What drivers of jobs leave behind: the reports, read from the coordinator's data folder.

A job's folder has `report.json` (what was found, counted) and `differences.ndjson` (one difference a line).
They lie where the driver ran: a coordinator on another machine that took over does not have them, and says
so.
"""

from __future__ import annotations

import html
import itertools
import json
from pathlib import Path
from typing import Any, Final

from coordinator.process.driver_supervisor import REPORT_NAME
from keytide.catalog.records import JobRecord
from keytide.errors import CallerError

DIFFERENCES_NAME: Final = "differences.ndjson"
MAX_LINES: Final = 10_000
"""Differences of one answer."""


class NoReportError(CallerError):
    """The job is not done, or its report lies elsewhere."""

    problem_type = "no-report"
    status = 404


def read(data_dir: Path, record: JobRecord, offset: int, limit: int) -> dict[str, Any]:
    """A job's report, with some of its differences. Blocks.

    Raises:
        NoReportError: there is none (here).
    """
    folder = data_dir / "jobs" / record.id
    try:
        report: dict[str, Any] = json.loads((folder / REPORT_NAME).read_text())
        with (folder / DIFFERENCES_NAME).open() as file:
            lines = [json.loads(line) for line in itertools.islice(file, offset, offset + limit)]
    except FileNotFoundError as error:
        if record.state != "DONE":
            raise NoReportError(
                f"job {record.id} is {record.state}: it has no report"
                + (f" ({record.error})" if record.error else ""),
                next_step=f"see `keytide job show {record.id}`",
            ) from error
        raise NoReportError(
            f"the report of job {record.id} is not on this coordinator's machine",
            next_step=f"it is {folder / REPORT_NAME} on the machine of the coordinator that led then; or run "
            "the job again",
        ) from error
    more = offset + len(lines) < int(report.get("listed", 0))
    return {**report, "differences": lines, "offset": offset, "next": offset + len(lines) if more else None}


def page(report: dict[str, Any]) -> str:
    """The report as a page for people."""
    counts = report.get("counts") or {}
    verdict = "nothing is wrong" if report.get("clean") else "there are differences"
    rows = "".join(_row(one) for one in report["differences"])
    indexes = "".join(
        f"<tr><td>{_text(one['name'])}</td><td>{one['entries']:,}</td><td>{one['unproven']:,}</td>"
        f"<td>{_counts(one['counts'])}</td></tr>"
        for one in report["indexes"]
    )
    following = ""
    if report.get("next") is not None:
        following = f'<p><a href="?format=html&amp;offset={report["next"]}">further differences</a></p>'
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(report["kind"])} {_text(report["job"])}</title>
<link rel="icon" href="/page/icon.svg">
<link rel="stylesheet" href="/page/page.css">
</head>
<body>
<main>
<h1>{_text(report["kind"])} {_text(report["job"])}: {verdict}</h1>
<p>Keyspace {_text(report["keyspace"])} at snapshot {report["snapshot"]}: {report["documents_read"]:,} records
were read in {report["seconds"]} s. {_counts(counts)}</p>
<section>
<h2>Indexes</h2>
<table><thead><tr><th>index</th><th>entries</th><th>unproven entries</th><th>differences</th></tr>
</thead><tbody>{indexes}</tbody></table>
</section>
<section>
<h2>Differences {report["offset"] + 1 if report["differences"] else 0} to
{report["offset"] + len(report["differences"])} of {report["listed"]:,}</h2>
<table><thead><tr><th>class</th><th>index</th><th>document</th><th>expected</th><th>found</th><th>source</th>
<th>slices</th><th>remarks</th></tr></thead><tbody>{rows}</tbody></table>
{following}
</section>
</main>
</body>
</html>
"""


def _row(one: dict[str, Any]) -> str:
    version = one.get("version")
    source = f"{version['partition']}:{version['offset']}" if version else "nothing"
    slices = ", ".join(
        f"{number}: {held['partition']}:{held['offset']}" for number, held in one.get("held", {}).items()
    )
    others = f"also {', '.join(one['others'])}. " if one.get("others") else ""
    cells = [
        one["kind"],
        one["index"],
        one["id"],
        _entries(one["expected"]),
        _entries(one["found"]),
        source,
        slices,
        others + one.get("reason", ""),
    ]
    return "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in cells) + "</tr>"


def _entries(entries: list[dict[str, Any]]) -> str:
    words = []
    for entry in entries:
        word = json.dumps(entry["key"], ensure_ascii=False)
        if entry.get("include") is not None:
            word += f" {json.dumps(entry['include'], ensure_ascii=False)}"
        words.append(f"{word} (slice {entry['slice']})")
    return ", ".join(words) or "nothing"


def _counts(counts: dict[str, int]) -> str:
    return _text(", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.items())) or "none")


def _text(value: object) -> str:
    return html.escape(str(value))
