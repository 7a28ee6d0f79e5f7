"""Writes docs/reference. What the scenes that it looks at log is told only when it fails."""

from __future__ import annotations

import logging
from logging.handlers import MemoryHandler

from tests.reference.pages import FOLDER, PAGES

NEVER = logging.CRITICAL + 1


def main() -> None:
    """Write all pages, one after the other."""
    for name, page in PAGES.items():
        (FOLDER / f"{name}.md").write_text(page())
        print(f"docs/reference/{name}.md")


heard = MemoryHandler(10_000, NEVER, logging.StreamHandler(), flushOnClose=False)
logging.getLogger().addHandler(heard)
try:
    main()
except BaseException:
    heard.flush()
    raise
finally:
    heard.close()  # or the end of the process would flush it
