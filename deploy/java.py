"""Finding Java, and saying how to get it.

Theory of operation: candidates are `$JAVA_HOME/bin/java`, then the first `java` on `PATH`. Each is asked for
its version; the first that Kafka and Spark can both run on wins. When none will do, the error names every
candidate, what is wrong with it, and the command that installs a good one. Processes that start their own JVM
(PySpark) get the choice through `Java.environment`.

Limits: Kafka 4.1 and Spark 4.0 need Java 17. From Java 24 on, the JDK no longer has the security manager that
Spark 4.0's Hadoop client calls, so Spark dies at its first file access.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from keytide.errors import ConfigurationError

OLDEST = 17
NEWEST = 23

HOW_TO_INSTALL = """\
Install Java 17 or 21, then try again:
  Debian, Ubuntu:  sudo apt-get install openjdk-17-jre-headless
  Fedora, RHEL:    sudo dnf install java-21-openjdk-headless
  macOS:           brew install openjdk@21
If it is installed already, set JAVA_HOME to its folder (the one that has bin/java in it)."""

_VERSION = re.compile(r'^(?:\S+ )*?version "([^"]+)"', re.MULTILINE)


class JavaError(ConfigurationError):
    """No usable Java: missing, too old, too new, or broken."""

    problem_type = "java-unusable"


@dataclass(frozen=True)
class Java:
    """A Java that was found and asked for its version."""

    path: Path
    """The `java` executable, links resolved."""
    version: str
    """As it says itself, such as `17.0.15`."""
    source: str
    """Where it was found: `JAVA_HOME` or `PATH`."""

    @property
    def major(self) -> int:
        """The feature release: 17 for `17.0.15`, 8 for `1.8.0_392`."""
        return major_version(self.version)

    @property
    def home(self) -> Path:
        """What `JAVA_HOME` must be for a program that is to use this Java."""
        return self.path.parent.parent

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """`base` (default: this process's environment) with `JAVA_HOME` set to this Java."""
        return {**(os.environ if base is None else base), "JAVA_HOME": str(self.home)}


def parse_version(output: str) -> str | None:
    """The version in what `java -version` prints, or None when there is none.

    The line need not be the first: with JAVA_TOOL_OPTIONS set, the JVM says so before it.
    """
    found = _VERSION.search(output)
    return found.group(1) if found else None


def major_version(version: str) -> int:
    """The feature release of a version string, in the old (`1.8.0_392`), new (`17.0.15`) and early (`25-ea`)
    style.

    Raises:
        ValueError: when it does not begin with a number.
    """
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    if not numbers or not version[0].isdigit():
        raise ValueError(f"not a Java version: {version!r}")
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first usable Java of `JAVA_HOME`, then `PATH`.

    Raises:
        JavaError: when there is none; says why each candidate was refused, and how to install one.
    """
    env = os.environ if environ is None else environ
    refused: list[str] = []
    for source, path in _candidates(env):
        found = _ask(path, source, env)
        if isinstance(found, str):
            refused.append(f"{path} (from {source}) {found}")
            continue
        complaint = unusable(found)
        if complaint is None:
            return found
        refused.append(f"{path} (from {source}) is Java {found.version}: {complaint}")
    reason = "; ".join(refused) if refused else "there is no java in JAVA_HOME or on PATH"
    raise JavaError(
        f"Keytide needs Java {OLDEST} or newer for Kafka and Spark, but {reason}.", next_step=HOW_TO_INSTALL
    )


def unusable(java: Java) -> str | None:
    """Why Kafka or Spark cannot run on `java`, or None when they can."""
    if java.major < OLDEST:
        return f"too old, {OLDEST} is the oldest that will do"
    if java.major > NEWEST:
        return f"too new for Spark 4.0, {NEWEST} is the newest that will do"
    return None


def _candidates(env: Mapping[str, str]) -> list[tuple[str, Path]]:
    candidates: list[tuple[str, Path]] = []
    if home := env.get("JAVA_HOME"):
        candidates.append(("JAVA_HOME", Path(home) / "bin" / "java"))
    if on_path := shutil.which("java", path=env.get("PATH", "")):
        candidates.append(("PATH", Path(on_path)))
    return candidates


def _ask(path: Path, source: str, env: Mapping[str, str]) -> Java | str:
    """The Java at `path`, or what is wrong with it, worded to follow its path."""
    try:
        run = subprocess.run(
            [str(path), "-version"], capture_output=True, text=True, timeout=60, env=dict(env), check=False
        )
    except FileNotFoundError:
        return "does not exist"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run: {error}"
    version = parse_version(run.stderr + run.stdout)
    if run.returncode != 0 or version is None:
        said = (run.stderr + run.stdout).strip().splitlines()
        return f"does not run: {said[0] if said else f'exit status {run.returncode}'}"
    # macOS has a launcher at /usr/bin/java that is a link to nowhere useful; the real home is only known when
    # links resolve.
    return Java(path.resolve(), version, source)
