"""The documentation site: pages of docs/ and those at the top, as one folder for Zensical (zensical.toml).

python -m tests.site     builds it in build/site

The README is its first page. On GitHub the pages lie in two folders; here they lie in one, and links between
them are set right. With `--strict` the generator refuses links and anchors that lead nowhere.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
BUILD: Final = ROOT / "build"
TOP: Final[Mapping[str, str]] = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
"""Pages at the top of the repository, and their names on the site."""
LINK: Final = re.compile(r"(?P<before>!?\[[^\]]*\]\()(?P<target>[^)\s]+)\)")


def moved(text: str, page: Path) -> str:
    """A page's text with its links as the site has them.

    Args:
        page: where it lies in the repository, relative to its root.
    """

    def link(found: re.Match[str]) -> str:
        target, hash_, anchor = found["target"].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        aim = (ROOT / page.parent / target).resolve().relative_to(ROOT)
        site, here = _on_site(aim), _on_site(page)
        if site is None or here is None:
            return f"`{aim}`"  # a file that is no page: code, the licence
        up = Path(*[".."] * len(here.parent.parts))
        return f"{found['before']}{(up / site).as_posix()}{hash_}{anchor})"

    return LINK.sub(link, text)


def _on_site(file: Path) -> Path | None:
    """Where a file of the repository lies on the site, None for what is not on it."""
    if file.as_posix() in TOP:
        return Path(TOP[file.as_posix()])
    return file.relative_to("docs") if file.parts[0] == "docs" else None


def gather(into: Path) -> None:
    """Put all pages and pictures into a folder, which is made anew."""
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(ROOT / "docs", into)
    pages = [ROOT / name for name in TOP] + sorted((ROOT / "docs").rglob("*.md"))
    for page in pages:
        inside = page.relative_to(ROOT)
        place = _on_site(inside)
        assert place is not None
        (into / place).write_text(moved(page.read_text(), inside))


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build the site in `folder`: pages go to `site-source` in it, the site to `site`."""
    source = folder / "site-source"
    gather(source)
    config = folder / "zensical.toml"
    config.write_text((ROOT / "zensical.toml").read_text())
    return subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", str(config)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


def main() -> int:
    """Build in a folder of its own, and show where the site lies."""
    with tempfile.TemporaryDirectory(prefix="keytide-site-") as folder:
        done = build(Path(folder))
        print(done.stdout, done.stderr, sep="", end="")
        if done.returncode == 0:
            shutil.rmtree(BUILD / "site", ignore_errors=True)
            shutil.copytree(Path(folder) / "site", BUILD / "site")
            print(f"{BUILD / 'site' / 'index.html'}")
        return done.returncode


if __name__ == "__main__":
    sys.exit(main())
