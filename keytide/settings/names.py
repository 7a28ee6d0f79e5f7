"""Names of settings that there are not, and values that do not fit: said in our words, with what was meant.

A misspelt setting would be one that is silently not in force.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from keytide.errors import ConfigurationError
from keytide.model.hints import did_you_mean

OTHER_VARIABLES: Final = frozenset(
    {
        # of the command
        "KEYTIDE_URL", "KEYTIDE_NODES", "KEYTIDE_TOKEN", "KEYTIDE_GIVE_UP_S",
        # of programs and what they start
        "KEYTIDE_CONFIG", "KEYTIDE_LOG", "KEYTIDE_CACHE", "KEYTIDE_MAVEN_URL", "KEYTIDE_PORTS",
        "KEYTIDE_SPARK_JARS", "KEYTIDE_SPARK_ARCHIVE", "KEYTIDE_SYNC_POINT", "KEYTIDE_ATTEMPT",
        # of tests and long runs
        "KEYTIDE_NO_SKIPS", "KEYTIDE_MATRIX", "KEYTIDE_HOSTS", "KEYTIDE_MINUTES", "KEYTIDE_SEED",
        "KEYTIDE_SEEDS",
        "KEYTIDE_FIRST_SEED", "KEYTIDE_MUTANT_SEEDS", "KEYTIDE_CHAOS", "KEYTIDE_EXAMPLES",
    }
)  # fmt: skip
"""Names in the environment that begin as settings do and are none."""


def check_names(file: Path, sections: Mapping[str, FieldInfo]) -> None:
    """See that the file's first level and the environment name what there is.

    Raises:
        ConfigurationError: they name something else.
    """
    try:
        for name in tomllib.loads(file.read_text()):
            if name not in sections:
                raise _unknown(f"{name} (in {file})", name, sections)
    except OSError:
        pass  # there is no file
    known = {f"KEYTIDE_{name.upper()}" for name in sections} | OTHER_VARIABLES
    for name in os.environ:
        if name.startswith("KEYTIDE_") and name.partition("__")[0] not in known:
            raise _unknown(f"{name} (in the environment)", name, known)


def _unknown(what: str, name: str, known: Iterable[str]) -> ConfigurationError:
    return ConfigurationError(
        f"there is no setting {what}",
        next_step=did_you_mean(name, known, "docs/reference/settings.md lists the settings"),
    )


def unfit(error: ValidationError, sections: Mapping[str, FieldInfo]) -> ConfigurationError:
    """The first of what pydantic found, in our words; never with the value, which may be a password."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = [str(part) for part in first["loc"]]
    name = ".".join(place)
    if first["type"] != "extra_forbidden":
        return ConfigurationError(
            f"setting {name}: {first['msg'].removeprefix('Value error, ')}",
            next_step="docs/reference/settings.md says what it takes",
        )
    section = sections.get(place[0])
    fields = getattr(section.annotation, "model_fields", {}) if section is not None else {}
    return _unknown(name, place[-1], fields)
