"""The code of the release before, to run beside today's: `releases/COMMIT.tar.xz`, its packages as they were.

    python -m tests.earlier.release COMMIT

packs those of a commit of this repository; the one that was packed before goes.
"""

from __future__ import annotations

import lzma
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

PACKAGES = ("projector", "router", "indexer", "coordinator", "streaming", "deploy", "keytide")
FOLDER = Path(__file__).parent / "releases"
_PATHS = ("PYTHONPATH", "PYTHONSAFEPATH")
"""What has Python take a folder's code before that which is installed, and not that of its working folder."""


def unpack(folder: Path) -> Path:
    """Unpack it below a folder; where its packages are."""
    (packed,) = FOLDER.glob("*.tar.xz")
    root = folder / packed.name.split(".")[0]
    with tarfile.open(packed) as archive:
        archive.extractall(root, filter="data")
    return root


def use(environment: dict[str, str], root: Path) -> None:
    """Have a process, and all that it starts, run the code below `root`.

    Raises:
        AssertionError: it would run other code.
    """
    environment |= dict(zip(_PATHS, (str(root), "1"), strict=True))
    code = "import sys; [print(__import__(name).__file__) for name in sys.argv[1:]]"
    command = [sys.executable, "-c", code, *PACKAGES]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert all(Path(file).is_relative_to(root) for file in found.splitlines()), found
    assert len(found.splitlines()) == len(PACKAGES)


def leave(environment: dict[str, str], before: Mapping[str, str] = os.environ) -> None:
    """Have a process run today's code again."""
    for name in _PATHS:
        environment.pop(name, None)
        if name in before:
            environment[name] = before[name]


def pack(commit: str) -> Path:
    """Pack the code of a commit."""
    tar = subprocess.run(["git", "archive", commit, *PACKAGES], stdout=subprocess.PIPE, check=True).stdout
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.tar.xz"):
        old.unlink()
    made = FOLDER / f"{commit}.tar.xz"
    made.write_bytes(lzma.compress(tar, preset=9 | lzma.PRESET_EXTREME))
    return made


if __name__ == "__main__":
    print(pack(sys.argv[1]))
