"""What somebody may have meant who named what there is not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

_ALIKE: Final = 0.6
"""How alike names must be (difflib's ratio): `flihgts` and `flights` are, `orders` and `flights` are not."""

_LONGEST: Final = 256
"""Longer names are not compared: that takes the product of their lengths, and field names may be as long as a
document."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of `known` that is most like `name`; None when none is."""
    folded: dict[str, str] = {}
    if len(name) > _LONGEST:
        return None
    for one in sorted(one for one in known if len(one) <= _LONGEST):
        folded.setdefault(one.casefold(), one)
    found = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=_ALIKE)
    return folded[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A next step: the nearest of `known`, before what else to do."""
    found = nearest(name, known)
    meant = f"Did you mean {found}?" if found is not None else ""
    return " ".join(filter(None, (meant, otherwise)))
