"""What `.option(...)` of the data source may say. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from keytide.errors import CallerError

DEFAULT_LEASE_S: Final = 600
"""How long a DataFrame may stay unused. Longer than between two cells of a notebook, as a rule; shorter than
a forgotten one may keep nodes from using disk again."""

_PLACES: Final = ("within", "contains", "intersects", "near")
SELECTION: Final[tuple[str, ...]] = (
    "equals",
    "low",
    "high",
    "inclusion",
    "prefix",
    "spans",
    *_PLACES,
    "srid",
)
MOMENT: Final[tuple[str, ...]] = ("at_least", "session", "max_staleness_ms", "timeout_ms")
_WORDS: Final = ("inclusion", "prefix", "session", "consistency")
_NUMBERS: Final = ("srid", "max_staleness_ms", "timeout_ms", "lease_s")
_LISTS: Final = ("equals", "low", "high", "spans")
_OBJECTS: Final = ("at_least", "types")
NAMES: Final = tuple(
    sorted({"url", "index", "path", "token", "where", "at", *_WORDS, *_NUMBERS, *_LISTS, *_OBJECTS, *_PLACES})
)


class OptionError(CallerError):
    """An option of the data source that cannot be; the message says which and what it takes."""

    problem_type = "invalid-option"
    status = 422


@dataclass(frozen=True)
class Options:
    """The options of one `load()`, read and checked as far as that can be without asking a node.

    Attributes:
        urls: of indexer nodes; tasks take turns at them.
        selection: members of a scan request: which entries, but for `where`.
        where: a condition on key parts, "" for none.
        moment: members of a request that say which snapshot.
        at: token of a held snapshot; None to hold one.
        types: column -> type.
        token: API token.
    """

    urls: tuple[str, ...]
    index: str
    selection: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""
    moment: Mapping[str, Any] = field(default_factory=dict, repr=False)
    at: str | None = field(default=None, repr=False)
    lease_s: int = DEFAULT_LEASE_S
    types: Mapping[str, Any] = field(default_factory=dict)
    token: str = field(default="", repr=False)

    @classmethod
    def read(cls, given: Mapping[str, str], token: str = "") -> Options:
        """The options as Spark hands them over: strings, names in any case.

        Args:
            token: API token where no option names one.

        Raises:
            OptionError: one is unknown, is missing, or has a value of a wrong form.
        """
        said = {name.lower(): value for name, value in given.items()}
        for name in said:
            if name not in NAMES:
                raise OptionError(f"there is no option {name}; there are {', '.join(NAMES)}")
        urls = tuple(url.strip() for url in said.get("url", "").split(",") if url.strip())
        index = said.get("index") or said.get("path", "")
        if not urls:
            raise OptionError('name the indexer nodes: .option("url", "http://127.0.0.1:8093")')
        if not index:
            raise OptionError('name the index: .option("index", "by_city")')
        if said.get("consistency", "stable") != "stable":
            raise OptionError(
                "a DataFrame is one snapshot, and `tip` is none: leave `consistency` out, or bound the "
                "snapshot's age by `max_staleness_ms`"
            )
        values = {name: _value(name, text) for name, text in said.items()}
        selection = {name: values[name] for name in SELECTION if name in values}
        where = said.get("where", "").strip()
        if where and selection:
            raise OptionError(f"give either `where` or `{next(iter(selection))}`, not both")
        moment = {name: values[name] for name in MOMENT if name in values}
        if "at" in said and (wrong := {*MOMENT, "lease_s"}.intersection(said).difference({"timeout_ms"})):
            raise OptionError(f"`at` names the snapshot: leave out `{min(wrong)}`")
        return cls(
            urls,
            index,
            selection,
            where,
            moment,
            said.get("at"),
            values.get("lease_s", DEFAULT_LEASE_S),
            values.get("types", {}),
            said.get("token") or token,
        )

    @property
    def waiting(self) -> dict[str, Any]:
        """What of the moment also holds for reads of a snapshot that is held: how long to wait."""
        return {name: value for name, value in self.moment.items() if name == "timeout_ms"}

    def urls_for(self, slice_number: int) -> list[str]:
        """The nodes in the order in which the task of a slice asks them: each begins with another one."""
        first = slice_number % len(self.urls)
        return [*self.urls[first:], *self.urls[:first]]


def _value(name: str, text: str) -> Any:
    if name in _NUMBERS:
        if not text.strip().isdecimal():
            raise OptionError(f"option {name} takes a whole number, not {text!r}")
        return int(text)
    if name in _LISTS:
        return _json(name, text, list, 'a JSON list, like ["Boston", 3]')
    if name in _OBJECTS:
        return _json(name, text, dict, "a JSON object, like " + _EXAMPLES[name])
    if name == "near":
        return _json(name, text, dict, 'a JSON object, like {"point": [-73.78, 40.64], "metres": 5000}')
    if name in _PLACES:
        return _json(name, text, (dict, list), "a GeoJSON geometry, or a box [west, south, east, north]")
    return text


_EXAMPLES: Final = {"at_least": '{"0": 4711}', "types": '{"n": "bigint"}'}


def _json(name: str, text: str, kind: type | tuple[type, ...], form: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, kind):
        raise OptionError(f"option {name} takes {form}, not {text!r}")
    return value
