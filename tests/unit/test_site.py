"""The documentation site builds, all its links and anchors lead somewhere, and one that did not would be
seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import site


def test_the_site_builds_without_a_word(tmp_path: Path) -> None:
    done = site.build(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in (
        "index.html",
        "protocol/index.html",
        "reference/rest/index.html",
        "adr/0001-key-encoding/index.html",
    ):
        assert (tmp_path / "site" / page).exists()


def test_links_that_lead_nowhere_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them, one of a page and one of a heading."""

    def gather(into: Path) -> None:
        real(into)
        page = into / "tune.md"
        page.write_text(f"{page.read_text()}\n[gone](gone.md)\n\n[gone](protocol.md#no-such-heading)\n")

    real = site.gather
    monkeypatch.setattr(site, "gather", gather)
    done = site.build(tmp_path)
    told = done.stdout + done.stderr
    assert done.returncode != 0
    assert "page does not exist" in told
    assert "anchor does not exist" in told


@pytest.mark.parametrize(
    ("page", "text", "shown"),
    [
        ("README.md", "[a](docs/tune.md#x)", "[a](tune.md#x)"),
        ("README.md", "![a](docs/images/page.png)", "![a](images/page.png)"),
        ("docs/tune.md", "[a](../ARCHITECTURE.md)", "[a](ARCHITECTURE.md)"),
        ("docs/tune.md", "[a](../README.md#x)", "[a](index.md#x)"),
        ("docs/adr/README.md", "[a](../../ARCHITECTURE.md)", "[a](../ARCHITECTURE.md)"),
        ("docs/adr/README.md", "[a](../tune.md), [b](#here)", "[a](../tune.md), [b](#here)"),
        ("README.md", "[a](LICENSE)", "`LICENSE`"),
    ],
)
def test_links_are_set_right(page: str, text: str, shown: str) -> None:
    assert site.moved(text, Path(page)) == shown
