"""Data folders of earlier releases go on where they stood (`tests/earlier`)."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from keytide.cli.admin import Admin
from keytide.client import Client
from tests.earlier import make
from tests.integration.test_up import Command, keytide  # noqa: F401  (a fixture)
from tests.oracle import Row, Source, difference, rows_of
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
ARCHIVES = sorted(Path(make.__file__).parent.glob("*.tar.xz"))


BY_NAME = make.Kind(
    f"CREATE INDEX by_name ON {make.TOPIC} (name) WITH (slices=1)", lambda document, _: [[document["name"]]]
)


def _rows(source: Source, offsets: dict[str, int], kind: make.Kind) -> list[Row]:
    """What an index should have at these offsets."""
    return rows_of(source.newest({int(at): end for at, end in offsets.items()}), kind.keys, kind.descending)


def _check(
    client: Client, source: Source, at_least: dict[str, int], kinds: dict[str, make.Kind] = make.INDEXES
) -> None:
    """Every index is what it should be of the source, at a timestamp no older than that."""
    for name, kind in kinds.items():
        page = client.page(name, limit=10_000, at_least=at_least, timeout_ms=60_000)
        assert page.page is None
        offsets = {at: place["offset"] for at, place in page.timestamp.items()}
        expected = _rows(source, offsets, kind)
        wrong = difference(expected, [(row.key, row.id) for row in page.rows])
        assert expected
        assert not wrong, f"{name}: {wrong}"
        if kind.include:
            documents = source.newest({int(at): end for at, end in offsets.items()})
            for row in page.rows:
                document = json.loads(documents[row.id.encode()] or b"")
                assert row.include == {column: document[column] for column in kind.include}


@pytest.mark.parametrize("packed", ARCHIVES, ids=lambda path: path.name.split(".")[0])
def test_a_folder_of_an_earlier_release_goes_on(keytide: Command, packed: Path) -> None:  # noqa: F811
    with tarfile.open(packed) as archive:
        archive.extractall(keytide.folder.parent)
    known: dict[str, Any] = json.loads((keytide.folder.parent / "known.json").read_text())
    state = keytide.up()
    kafka = state["kafka"]
    with (
        closing(Source(kafka, make.TOPIC)) as source,
        Client(state["nodes"]) as client,
        Admin(state["coordinator"]) as admin,
    ):
        client.session = known["session"]
        _check(client, source, make.ends(kafka))
        assert client.page("by_city", equals=["Trier"]).rows[0].id == "u5"
        assert len(admin.call("GET", "/v1/builds")) == len(make.INDEXES), "nothing was built anew"
        (skipped,) = admin.call("GET", "/v1/indexes/by_city/skipped")["lines"]
        assert make.BAD_ID in json.dumps(skipped)

        make.write(kafka, ((f"u{at}", make.person(at + 1)) for at in range(0, 320, 7)))
        _check(client, source, make.ends(kafka))
        assert keytide("sql", BY_NAME.statement)["build_state"] == "READY"
        _check(client, source, make.ends(kafka), {**make.INDEXES, "by_name": BY_NAME})
        violated = admin.call("GET", "/v1/indexes/by_email/violations?limit=1000")["keys"]
        having = Counter(row[0][0] for row in _rows(source, make.ends(kafka), make.INDEXES["by_email"]))
        assert {one["key"][0] for one in violated} == {email for email, count in having.items() if count > 1}
        assert violated
        make.write(kafka, ((f"u{at}", None) for at in range(0, 320, 7)))
        _check(client, source, make.ends(kafka))
        wait_for(
            lambda: not admin.call("GET", "/v1/indexes/by_email/violations")["violations"], "no violation"
        )
        wait_for(lambda: admin.call("GET", "/v1/health")["status"] == "ok", "all is well")
