"""Make a data folder with a little of everything in it, as test data for releases to come.

    python -m tests.earlier.make FOLDER NAME.tar.xz

FOLDER must not exist. `keytide` is called as a command only and all else comes from Kafka's clients, so the
code of another commit can be had to make it by PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import lzma
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

TOPIC = "people"
BAD_ID = "bad"
LIMIT_S = 400
MADE_ANEW = (
    "up.log",
    "logs",
    "kafka/logs",
    "kafka/server.properties",
    "kafka/log4j2.xml",
    "coordinator/builds",
    "coordinator/jobs",
)
"""Parts of the folder that a start writes again; they tell of the machine."""

Document = dict[str, Any]
Keys = Callable[[Document, str], Iterable[list[Any]]]


@dataclass(frozen=True, slots=True)
class Kind:
    """An index of the folder.

    Attributes:
        statement: what made it.
        keys: what it should have of a document.
        descending: of each key part.
        include: included columns.
    """

    statement: str
    keys: Keys
    descending: tuple[bool, ...] = ()
    include: tuple[str, ...] = ()


INDEXES: dict[str, Kind] = {
    "by_city": Kind(
        f"CREATE INDEX by_city ON {TOPIC} (city, age DESC) INCLUDE (name) WITH (slices=4)",
        lambda document, _: [[document["city"], document["age"]]],
        (False, True),
        ("name",),
    ),
    "by_tag": Kind(
        f"CREATE INDEX by_tag ON {TOPIC} (UNNEST(tags)) WITH (slices=2)",
        lambda document, _: [[tag] for tag in sorted(set(document["tags"]))],
    ),
    "by_email": Kind(
        f"CREATE UNIQUE INDEX by_email ON {TOPIC} (email) WITH (slices=2)",
        lambda document, _: [[document["email"]]],
    ),
    "adults": Kind(
        f"CREATE INDEX adults ON {TOPIC} (age) WHERE age >= 18 PARTITION BY HASH(id) WITH (slices=2)",
        lambda document, _: [[document["age"]]] if document["age"] >= 18 else [],
    ),
}


def person(number: int) -> Document:
    """A document."""
    return {
        "city": ("Bonn", "Kiel", "Ulm")[number % 3],
        "age": number % 50,
        "tags": [f"t{number % 7}", f"t{number % 5}"],
        "email": f"u{number}@x",
        "name": f"N{number}",
    }


def write(kafka: str, changes: Iterable[tuple[str, Document | bytes | None]]) -> None:
    """Write documents (None deletes) and broken records, in order."""
    producer = KafkaProducer(bootstrap_servers=kafka)
    for id_, change in changes:
        value = json.dumps(change).encode() if isinstance(change, dict) else change
        producer.send(TOPIC, key=id_.encode(), value=value)
    producer.flush()
    producer.close()


def make(folder: Path) -> None:
    """Make the data folder `folder`/data, and `folder`/known.json with what a client of then remembers."""
    folder.mkdir()

    def keytide(*arguments: str) -> Any:
        command = [sys.executable, "-c", "from keytide.cli import app; app()", *arguments]
        command += ["--data-dir", str(folder / "data"), "--json"]
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, timeout=LIMIT_S, check=True).stdout)

    state = keytide("up", "--detach", "--nodes", "2", "--port", "0", "--node-port", "0")
    try:
        kafka = state["kafka"]
        admin = KafkaAdminClient(bootstrap_servers=kafka)
        admin.create_topics([NewTopic(TOPIC, 2, 1)])
        admin.close()
        write(kafka, ((f"u{at}", person(at)) for at in range(200)))
        for kind in INDEXES.values():
            print(keytide("sql", kind.statement)["build_state"], flush=True)
        write(kafka, ((f"u{at}", person(at)) for at in range(200, 240)))
        write(kafka, ((f"u{at}", None) for at in range(0, 240, 11)))
        write(kafka, [(BAD_ID, b"{no json"), ("u5", {**person(5), "city": "Trier"})])
        known = _known(state["nodes"][0], ends(kafka))
        (folder / "known.json").write_text(json.dumps(known))
        _keep_for_ever(kafka)
        # Surely acknowledged by Kafka, perhaps not by the indexes.
        write(kafka, ((f"u{at}", person(at)) for at in range(300, 320)))
    finally:
        keytide("down")


def ends(kafka: str) -> dict[str, int]:
    """Next offsets of the source, by partition."""
    consumer = KafkaConsumer(bootstrap_servers=kafka)
    places = [TopicPartition(TOPIC, at) for at in sorted(consumer.partitions_for_topic(TOPIC) or ())]
    found = {str(place.partition): end for place, end in consumer.end_offsets(places).items()}
    consumer.close()
    return found


def _known(node: str, ends: dict[str, int]) -> dict[str, Any]:
    """A scan's session and snapshot, once it includes everything."""
    body = json.dumps({"limit": 1, "at_least": ends, "timeout_ms": 60_000}).encode()
    request = urllib.request.Request(
        f"{node}/v1/indexes/by_city/scan", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        page = json.loads(answer.read())
    return {"session": page["session"], "at": int(time.time())}


def _keep_for_ever(kafka: str) -> None:
    """Kafka deletes nothing by age: so the folder says the same whenever it is opened."""
    admin = AdminClient({"bootstrap.servers": kafka})
    entry = ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)
    topics = [name for name in admin.list_topics(timeout=20).topics if not name.startswith("__")]
    resources = [ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry]) for name in topics]
    for done in admin.incremental_alter_configs(resources).values():
        done.result(timeout=30)


def archive(folder: Path, path: Path) -> None:
    """Pack a folder without what tells of the machine. LMDB's files and Kafka's indexes are mostly holes: tar
    must pass over them."""
    for name in MADE_ANEW:
        part = folder / "data" / name
        shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)
    command = ["tar", "--create", "--sparse", "--format=pax", "--sparse-version=1.0", "--sort=name"]
    command += ["--owner=0", "--group=0", "--directory", str(folder), "data", "known.json"]
    packed = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    path.write_bytes(lzma.compress(packed, preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("archive", type=Path)
    chosen = parser.parse_args()
    make(chosen.folder.resolve())
    archive(chosen.folder.resolve(), chosen.archive)
