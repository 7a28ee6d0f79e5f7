"""The README's tour and the examples of the pages, as a new user copies them into a terminal: block after
block, page after page, on one cluster. What is shown is compared with what the pages say is shown."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from deploy.process import free_ports
from tests.examples import PAGES, RUN, Block, blocks, fits, foreign
from tests.unit.test_examples import REQUESTS
from tests.unit.test_style import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(900)]

LIMIT_S = 400.0
UP = "make up ARGS=--detach"
"""What the tour begins with. `make` would make `.venv`, in which this runs."""
ENDLESS = ("curl -sN", "client.tail(")
"""Streams that a person ends."""
ENDED_S = 3
SHOWN = {
    "keytide scan by_city --equals Boston": ["u1", "u2"],
    'keytide sql "SELECT city, COUNT(*)': ["Austin", "Boston"],
    'keytide sql "EXPLAIN': ["by_city"],
    "curl -s http://127.0.0.1:8093/v1/indexes/by_city/scan": ["Boston"],
    "curl -sN 'http://127.0.0.1:8093/v1/indexes/by_city": ["event: "],
    "curl -sN 'http://127.0.0.1:8093/v1/indexes/arrivals": ["event: snapshot"],
    "curl -s http://127.0.0.1:8093/v1/indexes/arrivals/aggregate": ["ATL"],
    'keytide sql "SELECT flight, arrival': ["2013-01-0"],
    "python own_writes.py": ["u4"],
    'with Client("http': ["u1", "u2"],
    "print([row.id for row in client.scan(": ["u4"],
    "keytide build wait": ["READY"],
    "keytide index build people_by_city": ["READY"],
    "keytide index verify by_city --wait": ["DONE"],
    "keytide index repair by_city --wait": ["DONE"],
    "keytide index skipped": ["not-json"],
    "keytide index violations": ["ann@example.com"],
    "people.groupBy(": ["Boston"],
}
"""Beginning of a line of a block -> what its command, or the program, must show."""
FAIL = {
    "CREATE UNIQUE INDEX by_email": "is UNIQUE and 1 of its keys",
    "keytide job cancel": "is over",
}
"""Commands that fail, or may, and what they must say then."""
DEFINED = "docs/define-an-index.md"
"""The page whose indexes are dropped as they are defined: each would be a Spark driver or two more."""

WRITER: Final = """
import json, kafka, kafka.admin
def written(topic, documents, partitions=4):
    at = json.load(open("keytide-data/cluster.json"))["kafka"]
    if topic not in (known := kafka.KafkaAdminClient(bootstrap_servers=at)).list_topics():
        known.create_topics([kafka.admin.NewTopic(topic, partitions, 1)])
    producer = kafka.KafkaProducer(bootstrap_servers=at)
    for id, value in documents:
        value = value if isinstance(value, bytes | None) else json.dumps(value).encode()
        producer.send(topic, key=id.encode(), value=value)
    producer.flush()
"""
ADMIN: Final = """
import json
from keytide.cli.admin import Admin
admin = Admin(json.load(open("keytide-data/cluster.json"))["coordinator"])
"""
FLIGHTS: Final = """
from deploy.demo import flights
from deploy.demo.story import STATEMENTS
asked = ["arrivals", "by_airport"]
rows = flights.load(1000)
written("flights", [(one.id, one.value) for one in [*flights.scheduled(rows), *flights.updates(rows)]])
for name in asked:
    admin.call("POST", "/v1/statements", {"statement": STATEMENTS[name]})
admin.call("POST", "/v1/builds", {"indexes": asked})
"""
BEFORE: Final = {
    "docs/build.md": WRITER + 'written("people", [*[("u99", {"name": "Eve"})] * 600, ("u99", None)])',
    "docs/scan-consistently.md": WRITER + ADMIN + FLIGHTS,
    "docs/define-an-index.md": WRITER + 'written("events", [(f"e{n}", {"time": n}) for n in range(100)])',
    "docs/unique.md": WRITER
    + 'written("people", [(id, {"email": "ann@example.com"}) for id in ("u17", "u52")])',
    "docs/recover.md": WRITER + 'written("people", [("u52", None)])',
    "docs/initial-state.md": """
import pathlib, pyarrow, pyarrow.parquet
pathlib.Path("exports").mkdir()
table = pyarrow.table({"id": ["u1", "old"], "name": ["Ann", "Old"], "city": ["Boston", "Rome"]})
pyarrow.parquet.write_table(table, "exports/people")
""",
    "docs/aggregate.md": ADMIN
    + """
for build in admin.call("GET", "/v1/builds"):
    if build["keyspace"] == "flights":
        admin.wait_for_build(build["id"], quiet=True)
""",
    "docs/operate.md": WRITER
    + ADMIN
    + """
import time
written("people", [("u9", b"no JSON")])
while not admin.call("GET", "/v1/indexes/by_city/skipped")["lines"]:
    time.sleep(0.1)
""",
}
"""What a reader of a page has, or has done, before its examples."""
SETTINGS: Final = """
[primary.people]
kind = "topic"

[build]
origin_paths = ["{folder}/exports"]
concurrent = 4
concurrent_per_node = 4
"""
"""Of the cluster: what pages tell their readers to set."""
SPARK: Final = """\
spark.driver.bindAddress  127.0.0.1
spark.driver.host         127.0.0.1
spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1
spark.log.level           ERROR
spark.sql.shuffle.partitions 2
spark.ui.enabled          false
spark.ui.showConsoleProgress false
spark.local.dir           {folder}
"""
PYTHON: Final = """
import json, signal, sys, traceback
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs tests in the background has it ignored
names = {"__name__": "__main__"}
for line in sys.stdin:
    status = 0
    try:
        exec(compile(json.loads(line), "<page>", "exec"), names)
    except KeyboardInterrupt:
        pass
    except BaseException:
        status = traceback.print_exc(file=sys.stdout) or 1
    print(end=f"\\0{status}\\0", flush=True)
"""
"""A session of Python: takes a block as a line of JSON, runs it, says how that ended."""


class Shown(NamedTuple):
    status: int
    text: str


class Session:
    """A program that is typed into. After each input it says how that ended, between zero bytes."""

    def __init__(self, argv: list[str], folder: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            argv,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, line: str, interrupted: bool = False) -> Shown:
        """What comes of a line; Ctrl-C after some seconds ends one that does not end."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        read = b""
        while not (ended := re.search(rb"\0(\d+)\0\Z", read)):
            limit = ENDED_S if interrupted else LIMIT_S
            if select.select([self._process.stdout], [], [], limit)[0]:
                some = os.read(self._process.stdout.fileno(), 65536)
                assert some, f"the session has ended:\n{read.decode()}"
                read += some
            else:
                assert interrupted, f"still not done:\n{line}\n{read.decode()}"
                interrupted = False
                self._process.send_signal(signal.SIGINT)
        return Shown(int(ended[1]), read[: ended.start()].decode())

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()


class Tour:
    """A folder and ports in place of the ones that pages name; one terminal for all of them, and for each a
    Python of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.node_port = map(str, free_ports(2))
        (folder / "keytide.toml").write_text(SETTINGS.format(folder=folder))
        (folder / "spark-defaults.conf").write_text(SPARK.format(folder=folder))
        commands = Path(sys.executable).parent
        self.environment = os.environ | {
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "200",
        }
        self.environment.pop("KEYTIDE_DATA_DIR", None)
        self.with_spark = self.environment | {
            "PYTHONPATH": str(ROOT),  # an editable install has no modules that Spark could list
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_CONF_DIR": str(folder),
        }
        self.terminal = Session(["bash"], folder, self.environment)
        self.terminal.run(r"set -o pipefail; printf '\0%s\0' $?")
        self.python: Session | None = None
        self.matched: set[str] = set()

    def page(self, page: str) -> None:
        """Run a page's blocks, and compare what they show."""
        self.python = Session([sys.executable, "-uc", PYTHON], self.folder, self.with_spark)
        if before := BEFORE.get(page):
            assert self.python.run(json.dumps(before)).status == 0, before
        shown: list[Shown] = []
        for block in blocks(page):
            if block.language in RUN and not block.reason:
                shown = [self._run(block, text) for text in self._inputs(block)]
            elif block.language == "json" and not block.reason and page not in REQUESTS:
                assert any(fits(json.loads(block.text), answer) for answer in answers(shown)), (block, shown)
            elif block.language == "text" and not block.reason:
                words, other = block.text.split(), foreign(block.text, "".join(one.text for one in shown))
                assert len(other) < len(words) / 3, (block, other, shown)
        self.python.close()
        self.python = None

    def unbuilt(self) -> dict[str, str]:
        """The states of the indexes that are not READY when all builds are over."""
        going = r"keytide build list --json | jq -r '.[] | select(.finished_at == null) | .id'"
        self.terminal.run(rf"for one in $({going}); do keytide build wait $one; done; printf '\0%s\0' $?")
        states = json.loads(self._typed("keytide index list --json").text)
        return {one["name"]: one["state"] for one in states if one["state"] not in ("READY", "DROPPING")}

    def close(self) -> None:
        for session in filter(None, (self.python, self.terminal)):
            session.close()
        subprocess.run(
            ["keytide", "down"], cwd=self.folder, env=self.environment, check=True, timeout=LIMIT_S
        )

    def _inputs(self, block: Block) -> list[str]:
        """What is typed at once: a command that may have several lines, or a whole program or script."""
        if block.language != "sh":
            return [block.text]
        commands: list[str] = []
        begun = ""
        for line in block.text.splitlines():
            begun += f"{line}\n"
            if subprocess.run(["bash", "-n", "-c", begun], capture_output=True).returncode == 0:
                commands.append(begun)
                begun = ""
        return [*commands, *filter(None, [begun])]

    def _run(self, block: Block, text: str) -> Shown:
        placed = self._placed(text)
        if block.language == "python":
            if not (shown := self._program(placed)):
                return Shown(0, "")
        elif block.language == "sql":
            (self.folder / "typed.sql").write_text(placed)
            if block.page == DEFINED:
                names = re.findall(r"^CREATE INDEX (\w+)", text, re.MULTILINE)
                drop = "".join(f"; keytide index drop {name}" for name in names)
                shown = self._typed(f"keytide sql --no-wait < typed.sql{drop}")
            else:
                shown = self._typed("keytide sql < typed.sql")
        else:
            (self.folder / "typed.sh").write_text(self._endless(placed))
            shown = self._typed(". ./typed.sh < /dev/null")
        where = f"{block.page}:{block.line}\n{text}\n{shown.text}"
        may = [said for beginning, said in FAIL.items() if text.startswith(beginning)]
        assert shown.status == 0 or any(said in " ".join(shown.text.split()) for said in may), where
        for beginning, wanted in SHOWN.items():
            if text.startswith(beginning) or f"\n{beginning}" in text or f"\n    {beginning}" in text:
                self.matched.add(beginning)
                assert [one for one in wanted if one not in shown.text] == [], where
        return shown

    def _program(self, text: str) -> Shown | None:
        """None for one that says in its first line what it is called: it is written down, to be run later."""
        if name := re.match(r"# (\w+\.py)\n", text):
            (self.folder / name[1]).write_text(text)
            return None
        assert self.python
        return self.python.run(json.dumps(text), any(stream in text for stream in ENDLESS))

    def _typed(self, line: str) -> Shown:
        return self.terminal.run(rf"{line}; printf '\0%s\0' $?")

    def _endless(self, text: str) -> str:
        if text.startswith(UP):
            return f"keytide up --detach --port {self.port} --node-port {self.node_port}"
        if text.startswith(ENDLESS):
            return f"timeout {ENDED_S} {text.partition('   #')[0].strip()} || test $? = 124"
        return text

    def _placed(self, text: str) -> str:
        ports = {"8091": self.port, "8093": self.node_port, "8094": str(int(self.node_port) + 1)}
        text = re.sub("809[134]", lambda named: ports[named[0]], text)
        return text.replace("/exports/", f"{self.folder}/exports/")


def answers(shown: list[Shown]) -> Iterator[object]:
    """Whatever was shown as JSON, whole or line by line."""
    for one in shown:
        for text in (one.text, *one.text.splitlines()):
            try:
                yield json.loads(text)
            except ValueError:
                continue


@pytest.fixture
def tour(tmp_path: Path) -> Iterator[Tour]:
    made = Tour(tmp_path)
    yield made
    made.close()


@pytest.mark.skipif(not shutil.which("jq"), reason="examples use jq: apt-get install jq")
def test_the_tour_of_the_readme_and_the_examples_of_the_pages(tour: Tour) -> None:
    for page in PAGES:
        tour.page(page)
    assert tour.matched == set(SHOWN), "pages have other examples now: say here what they must show"
    assert tour.unbuilt() == {"c": "DEFERRED"}
