"""The Java parts: the broker's jars and Spark's Kafka connector, fetched once into a cache of the user's.

Theory of operation: pyspark carries the Apache Ivy jar, so Java and pip are all that is needed to resolve
`ivy.xml` (its configurations `broker`, `spark` and `replacements`) from Maven Central. The result is a folder
named after what was asked for (a digest of `ivy.xml` and the Spark version), so that another version of
Keytide finds or makes its own. It is filled beside its place and moved there by one rename, under a lock, so
that neither an interruption nor a second process ever leaves half a folder; a manifest with names and sizes
makes the second call a matter of a few `stat`s. Ivy's own download cache lies next to it until all is there:
an interrupted download goes on where it stopped.

The cache is `$KEYTIDE_CACHE`, or `$XDG_CACHE_HOME/keytide`, or `~/.cache/keytide`. A machine without a
network can be given a copy of that folder. `KEYTIDE_MAVEN_URL` names a mirror of Maven Central to use
instead. Another `ivy.xml` has another folder: that of a benchmark's peer, which nobody else fetches.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from deploy.java import Java, find_java
from keytide.errors import ConfigurationError, KeytideError, RetryableError
from keytide.process.parent_death import die_with_parent

IVY_FILE = Path(__file__).with_name("ivy.xml")
CONFIGURATIONS = ("broker", "spark", "replacements")
MANIFEST = "manifest.json"

_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir={cache}/>
  <resolvers><ibiblio name="central" m2compatible="true"{root}/></resolvers>
</ivysettings>
"""
_FOUND = re.compile(r"^\s*found (\S+) in ")
_DONE = re.compile(r"\[SUCCESSFUL ?\] (\S+)")
_TROUBLE = re.compile(
    r"(WARN|ERROR|not found|timed out|refused|Unknown ?Host|SSL|PKIX|proxy|denied|No space)", re.I
)


class JarsError(RetryableError):
    """The Java parts could not be fetched; the message has Ivy's own words, `next_step` what to try."""

    problem_type = "java-parts-unavailable"


@dataclass(frozen=True)
class JavaParts:
    """What is asked for together.

    Attributes:
        ivy: the file that names the modules.
        configurations: of that file; each becomes a folder of jars.
        words: what people call them.
        megabytes: of the download, about.
    """

    ivy: Path
    configurations: tuple[str, ...]
    words: str
    megabytes: int


OURS = JavaParts(IVY_FILE, CONFIGURATIONS, "Kafka broker, Spark's Kafka connector", 55)


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where downloads are kept between checkouts."""
    env = os.environ if environ is None else environ
    if own := env.get("KEYTIDE_CACHE"):
        return Path(own).expanduser()
    base = env.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "keytide"


def jars_folder(parts: JavaParts = OURS) -> Path:
    """The folder that holds exactly the jars that this `ivy.xml` and this pyspark ask for."""
    asked = parts.ivy.read_bytes() + version("pyspark").encode()
    return cache_folder() / "jars" / hashlib.sha256(asked).hexdigest()[:16]


def fetch(parts: JavaParts = OURS) -> Path:
    """Make sure that the jars are there; returns their folder. Instant when they are.

    Raises:
        JavaError: no usable Java to fetch them with.
        JarsError: the download failed.
    """
    folder = jars_folder(parts)
    if is_complete(folder, parts):
        return folder
    java = find_java()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder.parent / "lock"):
        if not is_complete(folder, parts):  # else another process was faster
            _fetch_into(folder, java, parts)
    return folder


def is_complete(folder: Path, parts: JavaParts = OURS) -> bool:
    """Whether every jar of the folder's manifest is there at its full size."""
    manifest, names = _manifest(folder), parts.configurations
    return all(manifest.get(name) for name in names) and all(
        _size(folder / name / jar) == size for name in names for jar, size in manifest[name].items()
    )


def jars_of(configuration: str, parts: JavaParts = OURS) -> list[Path]:
    """The jars of one configuration, fetched at the first call.

    Args:
        configuration: `broker`, which a Kafka broker runs on; `spark`, Spark's Kafka connector, for
            `spark.jars`; `replacements`, for those of the same names inside pyspark.

    Raises:
        JavaError: no usable Java to fetch them with.
        JarsError: the download failed.
    """
    folder = fetch(parts)
    return [folder / configuration / jar for jar in sorted(_manifest(folder)[configuration])]


def _manifest(folder: Path) -> dict[str, dict[str, int]]:
    """Configuration to jar name to size in bytes; empty when there is no readable manifest."""
    try:
        manifest: dict[str, dict[str, int]] = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return {}
    return manifest


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`; it goes with the process, however that ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another process is fetching the Java parts; waiting for it.", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch_into(folder: Path, java: Java, parts: JavaParts) -> None:
    """Resolve beside `folder`, write the manifest, and move the result into its place."""
    downloads = folder.parent / "ivy"
    for left in folder.parent.glob("fetching-*"):  # by a process that was killed: we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as made:
        work = Path(made)
        going_on = downloads.exists()
        try:
            ready = _resolve(java, work / "first", downloads, parts)
        except JarsError:
            if not going_on:
                raise
            # What an interrupted run left may be what fails now; kept, in case it is the network after all.
            ready = _resolve(java, work / "second", work / "ivy", parts)
        manifest = {
            name: {jar.name: _size(jar) for jar in (ready / name).glob("*.jar")}
            for name in parts.configurations
        }
        (ready / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True))
        if not is_complete(ready, parts):
            raise JarsError("Ivy ended well but left no jars.", next_step=_next_step(parts))
        shutil.rmtree(folder, ignore_errors=True)  # there only when damaged
        ready.rename(folder)
    shutil.rmtree(downloads, ignore_errors=True)


def _resolve(java: Java, work: Path, downloads: Path, parts: JavaParts) -> Path:
    """Run Ivy, showing its progress; the folder with one folder of jars per configuration.

    Raises:
        JarsError: it failed; with the telling lines of its output.
    """
    work.mkdir()
    mirror = os.environ.get("KEYTIDE_MAVEN_URL")
    root = f" root={quoteattr(mirror)}" if mirror else ""
    settings, ready = work / "ivysettings.xml", work / "ready"
    settings.write_text(_SETTINGS.format(cache=quoteattr(str(downloads)), root=root))
    command = [str(java.path), *proxy_options(os.environ), f"-Dspark.version={version('pyspark')}"]
    command += ["-jar", str(_ivy_jar()), "-ivy", str(parts.ivy), "-settings", str(settings)]
    command += ["-confs", *parts.configurations]
    command += ["-retrieve", f"{ready}/[conf]/[artifact]-[revision](-[classifier]).[ext]"]
    lines: list[str] = []
    with _progress(parts) as (progress, task):
        # Dies with us: were it to go on, the next process would share Ivy's cache with it.
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=die_with_parent(),
        ) as ivy:
            for line in ivy.stdout or ():
                lines.append(line.rstrip())
                _show(progress, task, line)
        if ivy.returncode != 0:
            telling = [line.strip() for line in lines if _TROUBLE.search(line)] or lines
            raise JarsError(
                f"The Java parts ({parts.words}) could not be fetched:\n  "
                + "\n  ".join(dict.fromkeys(telling[-40:])),
                next_step=_next_step(parts),
            )
    return ready


@contextmanager
def _progress(parts: JavaParts) -> Iterator[tuple[Progress, TaskID]]:
    """A bar on a terminal; elsewhere two plain lines."""
    console = Console(stderr=True)
    if not console.is_terminal:
        size = f"about {parts.megabytes} MB"
        print(f"Fetching the Java parts (once per machine, {size}) ...", file=sys.stderr, flush=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("Java parts: asking which are needed", total=None)
        yield progress, task
    if not console.is_terminal:
        done = progress.tasks[task]
        print(f"Java parts: {done.completed:.0f} jars fetched in {done.elapsed or 0:.0f} s", file=sys.stderr)


def _show(progress: Progress, task: TaskID, line: str) -> None:
    """Count what Ivy says: first one `found` line per module, then one `[SUCCESSFUL]` line per jar."""
    state = progress.tasks[task]
    if _FOUND.match(line):
        found = state.fields.get("found", 0) + 1
        progress.update(task, found=found, description=f"Java parts: {found} needed")
    elif done := _DONE.search(line):
        name = done.group(1).rpartition("!")[2]
        progress.update(task, total=state.fields.get("found"), advance=1, description=f"Java parts: {name}")


def pyspark_jars(pattern: str = "*.jar") -> list[Path]:
    """The jars inside the pyspark package."""
    spec = find_spec("pyspark")
    places = list(spec.submodule_search_locations or []) if spec else []
    return [jar for place in places for jar in Path(place, "jars").glob(pattern)]


def _ivy_jar() -> Path:
    """The Ivy jar inside the pyspark package."""
    jars = pyspark_jars("ivy-*.jar")
    if not jars:
        raise ConfigurationError(
            "The pyspark package has no Ivy jar.", next_step="Install again: make clean setup"
        )
    return jars[0]


def proxy_options(env: Mapping[str, str]) -> list[str]:
    """Java's proxy properties for `HTTPS_PROXY`, which Java does not read by itself.

    None when JAVA_TOOL_OPTIONS names a proxy already. Names in `NO_PROXY` become Java's list, which knows
    `*.` for suffixes.
    """
    value = env.get("HTTPS_PROXY") or env.get("https_proxy")
    if not value or "proxyHost" in env.get("JAVA_TOOL_OPTIONS", ""):
        return []
    proxy = urlsplit(value if "//" in value else f"//{value}")
    if not proxy.hostname:
        return []
    options = [f"-Dhttps.proxyHost={proxy.hostname}", f"-Dhttps.proxyPort={proxy.port or 443}"]
    except_for = [name.strip() for name in (env.get("NO_PROXY") or env.get("no_proxy") or "").split(",")]
    if names := [f"*{name}" if name.startswith(".") else name for name in except_for if name]:
        options.append(f"-Dhttp.nonProxyHosts={'|'.join(names)}")
    return options


def _next_step(parts: JavaParts) -> str:
    return f"""\
Check that this machine reaches Maven Central, then try again; what was fetched so far is kept.
If it sits behind
  - a proxy: set HTTPS_PROXY, or JAVA_TOOL_OPTIONS="-Dhttps.proxyHost=... -Dhttps.proxyPort=..."
  - its own certificates: JAVA_TOOL_OPTIONS="-Djavax.net.ssl.trustStore=FILE"
  - a mirror: set KEYTIDE_MAVEN_URL to its address
Without a network, copy the folder {jars_folder(parts)}
from a machine that has it."""


if __name__ == "__main__":
    try:
        print(fetch())
    except KeytideError as error:
        sys.exit(f"{error.message}\n{error.next_step}")
