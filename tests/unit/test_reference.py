"""docs/reference is what `python -m tests.reference` makes of the code as it is."""

from __future__ import annotations

import pytest

from tests.reference import metrics, settings
from tests.reference.pages import FOLDER, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_the_reference_is_current(name: str) -> None:
    """When this fails: run `python -m tests.reference`, look at what has changed, and commit it."""
    assert (FOLDER / f"{name}.md").read_text() == PAGES[name]()


def test_there_are_no_other_pages() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == set(PAGES)


def test_every_setting_and_metric_says_what_it_is() -> None:
    silent = [
        f"{section}.{name}"
        for section, fields in settings.sections()
        for name, field in fields.items()
        if not field.description
    ]
    silent += [one.name for lines in metrics.processes().values() for one in lines if not one.text]
    assert silent == []
