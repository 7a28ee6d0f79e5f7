"""docs/reference is what `python -m tests.reference` makes of the code as it is."""

from __future__ import annotations

import importlib
import logging
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.reference import metrics, pages, settings
from tests.reference.pages import FOLDER, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_the_reference_is_current(name: str) -> None:
    """When this fails: run `python -m tests.reference`, look at what has changed, and commit it."""
    assert (FOLDER / f"{name}.md").read_text() == PAGES[name]()


@pytest.mark.parametrize("fails", [False, True])
def test_what_its_scenes_log_is_told_only_when_it_fails(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def page() -> str:
        logging.getLogger("scene").error("a slice is lost")
        return "" if not fails else str(1 // 0)

    monkeypatch.setattr(pages, "FOLDER", tmp_path)
    monkeypatch.setattr(pages, "PAGES", {"one": page})
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.delitem(sys.modules, "tests.reference.__main__", raising=False)
    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        importlib.import_module("tests.reference.__main__")
    out, err = capfd.readouterr()
    assert (out, err) == (("", "a slice is lost\n") if fails else ("docs/reference/one.md\n", ""))


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
