"""The roles of indexer nodes (`indexer.roles`): what a node is for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, Literal, get_args

Role = Literal["index", "scan"]
"""`index`: it may hold slices. `scan`: it answers scans of clients."""
ROLES: Final[tuple[Role, ...]] = get_args(Role)


def has_role(told: Iterable[str], role: Role) -> bool:
    """Whether a node has a role.

    Args:
        told: what it says of itself. Nothing is said by a release without roles, which has both; a later one
            may say more than is known here.
    """
    known = tuple(told)
    return not known or role in known


def listed_roles(said: object) -> tuple[Role, ...]:
    """The roles that a setting lists, each once.

    Args:
        said: a list; or, from the environment, names with commas between them, or a list in JSON.

    Raises:
        ValueError: an empty list, or a name that is no role.
    """
    if isinstance(said, str):
        said = _json(said) if said.lstrip().startswith("[") else [one.strip() for one in said.split(",")]
    names = list(said) if isinstance(said, (list, tuple)) else [said]
    choice = " and ".join(ROLES)
    if not [one for one in names if one != ""]:
        raise ValueError(f"a node has one role at least: name some of {choice}")
    for name in names:
        if name not in ROLES:
            raise ValueError(f"there is no role {name!r}: the roles are {choice}")
    return tuple(role for role in ROLES if role in names)


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is no list in JSON: {error}") from error
