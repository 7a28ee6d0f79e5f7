"""Writes docs/reference."""

from __future__ import annotations

from tests.reference.pages import FOLDER, PAGES

for name, page in PAGES.items():
    (FOLDER / f"{name}.md").write_text(page())
    print(f"docs/reference/{name}.md")
