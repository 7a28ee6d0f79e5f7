"""What a build may read as its beginning: Spark reads with the coordinator's rights. Pure, but for links.

Theory of operation. A request names a path or an address, and rows of what is there end up in an index that
readers see. So whoever may start builds could read any file of the coordinator's machine, and reach any
address from there. Only what the operator has listed may be read: files and folders at or below one of
`build.origin_paths` or the data folder, and addresses of `build.origin_urls`. An address of a database
(`jdbc:`) must be one of these as it stands, for what follows it are options, which load classes and files;
others may go on behind it, at a `/`. Paths count where their links lead.

Every option that can be a place counts as one. A reader that takes none (its format alone says where it
reads) is listed as an address of its format: `kafka:`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from keytide.errors import CallerError

_PLACES: Final = frozenset({"path", "paths", "url", "uri", "location", "file"})
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*+:", re.I)
_PLACE: Final = re.compile(r"^\s*+(?:/.|jdbc:|file:|[a-z][a-z0-9+.-]*+:/)|://", re.I)
"""What looks like one, under whatever name."""
_CLIMBS: Final = re.compile(r"(?:^|/)\.\.(?:/|$)|[{}\\]")
"""Steps up, and the glob that can hide one."""


class OriginRefusedError(CallerError):
    """A build may not begin with this table."""

    problem_type = "origin-not-allowed"
    status = 403


class Reach(NamedTuple):
    """What may be read.

    Attributes:
        folders: absolute.
        urls: addresses.
    """

    folders: tuple[Path, ...] = ()
    urls: tuple[str, ...] = ()


def reach_of(data_dir: Path, paths: Sequence[str], urls: Sequence[str]) -> Reach:
    """What settings allow."""
    return Reach((data_dir.resolve(), *(Path(path).resolve() for path in paths)), tuple(urls))


def check(reach: Reach, kind: str, path: str, options: Mapping[str, str]) -> None:
    """See that a table may be read.

    Args:
        kind: the reader's format.

    Raises:
        OriginRefusedError: it may not.
    """
    named = False
    for what, place in _places(path, options):
        named = True
        if not _allowed(reach, place):
            setting = "build.origin_paths" if _file(place) is not None else "build.origin_urls"
            raise OriginRefusedError(
                f"a build may not read {place[:200]!r} ({what}): it is not among what the coordinator's "
                f"setting {setting} allows",
                next_step=f"have the operator add it to {setting}, or put the table below the data folder",
            )
    if not named and f"{kind}:" not in reach.urls:
        raise OriginRefusedError(
            f"a build may not read by {kind!r}, which names no place",
            next_step=f"have the operator add {kind + ':'!r} to the coordinator's setting build.origin_urls",
        )


def _places(path: str, options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if path:
        yield "the path", path
    for name, value in sorted(options.items()):
        if name.lower() in _PLACES or _PLACE.search(value):
            yield f"option {name}", value.strip()


def _file(place: str) -> str | None:
    """The path of a file, without its scheme; None for any other address."""
    if place.lower().startswith("file:"):
        rest = place[5:]
        return rest.removeprefix("//") if rest.startswith("///") else rest
    return None if _SCHEME.match(place) else place


def _allowed(reach: Reach, place: str) -> bool:
    if _CLIMBS.search(place) and not place.lower().startswith("jdbc:"):
        return False
    path = _file(place)
    if path is None:
        return place in reach.urls or any(
            place.startswith(url if url.endswith("/") else f"{url}/")
            for url in reach.urls
            if not url.lower().startswith("jdbc:")
        )
    if not path.startswith("/") or path.startswith("//"):
        return False  # relative to what, only Spark would know; or a machine's name
    found = Path(path).resolve()
    return any(found.is_relative_to(folder) for folder in reach.folders)
