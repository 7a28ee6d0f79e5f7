"""Maps of spatial indexes on the page: what nodes give is drawn, on the globe and in a plane, and said in
words."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.browser.scene import Scene, day_of_maps, served
from tests.browser.test_page import LIMIT_S, chromium, load, text_of

pytestmark = [pytest.mark.browser, pytest.mark.timeout(2 * LIMIT_S)]
__all__ = ["chromium"]
BONN, AUCKLAND, QUITO = (7.1, 50.73), (174.76, -36.85), (-78.5, -0.2)
WIDTH, HEIGHT = 720, 360


@pytest.fixture(scope="module")
def scene() -> Scene:
    made = day_of_maps()
    made.boxes = {
        "by_place": [(*at, *at) for at in (BONN, AUCKLAND, QUITO)] + [(10, 40, 60, 60), (170, 0, -170, 5)],
        "by_seat": [(100.0, 20.0, 100.0, 20.0), (101.5, 20.5, 101.5, 20.5), (100.2, 20.1, 100.9, 20.4)],
    }
    return made


@pytest.fixture(scope="module")
def maps(chromium: str, scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By index its map, as drawn."""
    with served(scene) as url:
        drawn = load(chromium, tmp_path_factory.mktemp("maps"), url + "/", 'id="map-by_seat"')
    part = drawn[drawn.index('id="maps"') : drawn.index('id="stability"')]
    figures = re.findall(r"<figure.*?</figure>", part, re.DOTALL)
    return {text_of(figure).split()[0]: figure for figure in figures} | {"page": drawn}


def dots(figure: str) -> list[tuple[float, float]]:
    found = re.findall(r'<circle cx="([^"]+)" cy="([^"]+)" r="3"', figure)
    return [(float(x), float(y)) for x, y in found]


def test_geometries_are_where_they_are_on_the_globe(maps: dict[str, str]) -> None:
    """All around the globe: two pixels are a degree."""
    found = dots(maps["by_place"])
    expected = [((lon + 180) * 2, (90 - lat) * 2) for lon, lat in (BONN, AUCKLAND, QUITO, (180, 2.5))]
    assert found == [pytest.approx(at, abs=0.01) for at in expected]
    ((x, y, wide, high),) = re.findall(
        r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"></rect>',
        maps["by_place"].split("<figcaption")[0],
    )
    assert tuple(map(float, (x, y, wide, high))) == pytest.approx((380, 60, 100, 40))
    assert 'class="land"' in maps["by_place"]


def test_it_is_said_in_words(maps: dict[str, str]) -> None:
    words = text_of(maps["by_place"])
    assert "5 geometries of by_place, between 180° W and 180° E, 90° S and 90° N" in words
    assert "a geometry; 5 are shown, of" in words
    assert "the bounding box of a line or an area" in words
    assert "longitude and latitude (srid 4326); land: Natural Earth" in words
    assert {"60° W", "0°", "120° E", "60° N"} <= set(re.findall(r"<text[^>]*>([^<]*)", maps["by_place"]))
    assert 'role="img" aria-labelledby="map-by_place"' in maps["by_place"]


def test_a_plane_is_drawn_in_its_own_bounds(maps: dict[str, str]) -> None:
    figure = maps["by_seat"]
    found = dots(figure)
    assert len(found) == 2
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in found)
    (left, low), (right, high) = found
    assert left < WIDTH / 3
    assert right > 2 * WIDTH / 3
    assert low > high, "larger numbers are further up"
    assert right - left == pytest.approx(3 * (low - high)), "of one scale in both directions"
    assert "a plane (srid 0)" in text_of(figure)
    assert "land" not in figure


def test_the_table_says_how_an_index_is_made(maps: dict[str, str]) -> None:
    words = text_of(maps["page"])
    assert "USING spatial, srid 4326 (longitude and latitude) 4 partitions by HASH(id), a slice each" in words
    assert "USING spatial, srid 0 (a plane) 2 partitions by RANGE(cell), a slice each" in words
    assert "USING btree 2 partitions by HASH(tailnum), of 3, 1 slices" in words


def test_scripts_and_outline_are_the_coordinators_own(scene: Scene) -> None:
    with served(scene) as url:
        for name in ("map.js", "land.js", "page.js"):
            answer = httpx.get(f"{url}/page/{name}")
            assert answer.status_code == 200
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'self'")
        assert len(httpx.get(f"{url}/page/land.js").content) < 20_000
        assert httpx.get(f"{url}/page/other.js").status_code == 404


def test_a_node_that_cannot_be_asked_costs_its_map_only(
    chromium: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = day_of_maps()
    with served(made) as url:
        drawn = load(chromium, tmp_path_factory.mktemp("nomap"), url + "/", "There is no map")
    words = text_of(drawn)
    assert re.search(
        r"There is no map: node node-\d, which holds slices of the index, cannot be asked", words
    )
    assert "USING spatial" in words


def test_an_index_with_nothing_in_it_has_an_empty_map(
    chromium: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = day_of_maps()
    made.boxes = {"by_place": [], "by_seat": []}
    with served(made) as url:
        drawn = load(chromium, tmp_path_factory.mktemp("empty"), url + "/", "There is nothing in it yet.")
    assert "<circle" not in drawn


def test_maps_fit_a_narrow_window(
    chromium: str, scene: Scene, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with served(scene) as url:
        drawn = load(chromium, tmp_path_factory.mktemp("narrow"), f"{url}/frame/390", "data-scroll=")
    assert 'data-scroll="390"' in drawn
