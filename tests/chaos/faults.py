"""Faults on the processes of a local cluster, by a schedule that follows from the seed."""

from __future__ import annotations

import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from keytide.cli.admin import Admin
from keytide.errors import KeytideError
from keytide.kafka.admin import list_offsets
from tests.chaos.copies import copy_tails
from tests.chaos.moving import lay_out, move
from tests.chaos.processes import Processes, family, send, stopped
from tests.chaos.run import Run
from tests.chaos.truncating import cut
from tests.waiting import slowness

FRESH_LIMIT_S = 180.0
STALL_S = (12.0, 18.0)
"""Longer than every time-out of a cluster with `driver.SETTINGS`: nodes 3 s, sessions 6 s, transactions
10 s."""


KINDS = (
    *("kill", "term", "stop", "nodes", "all", "broker", "broker-stop", "fold", "spark", "second", "copies"),
    *("lose", "damage", "truncate", "fold-stop", "move", "layout"),
)
HAS_NOTHING = (psutil.Error, LookupError, ValueError, OSError, StopIteration, KafkaException, KeytideError)
"""What a fault may raise that finds nothing to strike just now."""


class Faults:
    """One thread that does harm, and sees that everything gets fresh again.

    Args:
        kinds: which faults, of `KINDS`.

    Attributes:
        over: set it, and the thread ends after the fault at hand.
    """

    def __init__(self, run: Run, processes: Processes, seed: int, kinds: list[str]) -> None:
        self._run = run
        self._processes = processes
        self._chance = random.Random(seed)
        self.over = threading.Event()
        works = (
            *(
                self._kill,
                self._term,
                self._stop,
                self._all_nodes,
                self._all,
                self._broker,
                self._broker_stop,
            ),
            *(self._fold, self._spark, self._second, self._copies, self._lose, self._damage, self._truncate),
            self._fold_stop,
            lambda: move(self._run, self._chance),
            lambda: lay_out(self._run, self._chance),
        )
        self._table: dict[str, Callable[[], str]] = dict(zip(KINDS, works, strict=True))
        self._kinds = kinds

    def work(self) -> None:
        """The thread: rounds of one to three faults, most of them followed by a look whether all is well."""
        while not self.over.wait(self._chance.uniform(1, 5)) and not self._run.stopping.is_set():
            done: list[str] = []
            for _ in range(self._chance.choice((1, 1, 1, 2, 3))):
                kind = self._chance.choice(self._kinds)
                self._run.strike()
                try:
                    what = self._table[kind]()
                except HAS_NOTHING as error:
                    self._run.note(f"fault {kind} had nothing to strike: {type(error).__name__} {error}")
                    continue
                finally:
                    self._run.strike()
                if what:
                    self._run.note(f"fault {kind}: {what}")
                    self._run.count(faults=1, **{f"fault_{kind}": 1})
                    done.append(kind)
                self._run.pause(self._chance.choice((0, 0.3, 2)))
            if done and not self.over.is_set() and self._chance.random() < 0.75:
                took = fresh_again(self._run, f"after {', '.join(done)}")
                self._run.recoveries.setdefault(done[-1] if len(done) == 1 else "several", []).append(took)

    # --- what can be done ---------------------------------------------------------------------------------

    def _some(self) -> tuple[str, psutil.Process]:
        services = {name: one for name, one in self._processes.services().items() if name != "kafka"}
        name = self._chance.choice(list(services))
        return name, services[name]

    def _kill(self) -> str:
        name, process = self._some()
        send([process], signal.SIGKILL)
        return f"kill -9 of {name}"

    def _term(self) -> str:
        name, process = self._some()
        send([process], signal.SIGTERM)
        return f"SIGTERM to {name}"

    def _stop(self) -> str:
        name, process = self._some()
        held = family(process) if self._chance.random() < 0.5 else [process]
        seconds = self._chance.uniform(*STALL_S)
        with stopped(held):
            self._run.pause(seconds)
        return f"SIGSTOP of {name} ({len(held)} processes) for {seconds:.1f} s"

    def _all_nodes(self) -> str:
        nodes = [one for name, one in self._processes.services().items() if name.startswith("node-")]
        send(nodes, signal.SIGKILL)
        return f"kill -9 of all {len(nodes)} nodes at once"

    def _all(self) -> str:
        """Everything, one after the other: parts that were killed first are up before the last is killed, or
        not, so that they come back in every order."""
        services = list(self._processes.services().items())
        self._chance.shuffle(services)
        pause = self._chance.choice((0, 0.2, 1.5))
        for _, process in services:
            send([process], signal.SIGKILL)
            self._run.pause(pause)
        return f"kill -9 of {', '.join(name for name, _ in services)}, {pause} s apart"

    def _broker(self) -> str:
        number = self._chance.choice((signal.SIGKILL, signal.SIGTERM))
        send([self._processes.services()["kafka"]] if "kafka" in self._processes.services() else [], number)
        return f"{number.name} to Kafka"

    def _broker_stop(self) -> str:
        services = self._processes.services()
        if "kafka" not in services:
            return ""
        seconds = self._chance.uniform(*STALL_S)
        with stopped([services["kafka"]]):
            self._run.pause(seconds)
        return f"SIGSTOP of Kafka for {seconds:.1f} s"

    def _fold(self) -> str:
        workers = self._processes.fold_workers()
        send(workers, signal.SIGKILL)
        return f"kill -9 of {len(workers)} fold workers" if workers else ""

    def _fold_stop(self) -> str:
        """For good: their nodes replace them."""
        workers = self._processes.fold_workers()
        send(workers, signal.SIGSTOP)
        return f"SIGSTOP of {len(workers)} fold workers, which nobody wakes" if workers else ""

    def _spark(self) -> str:
        found = self._processes.spark()
        if not found:
            return ""
        process = self._chance.choice(found)
        send([process], signal.SIGKILL)
        return f"kill -9 of one of {len(found)} processes of Spark"

    def _second(self) -> str:
        with self._processes.second_projector() as process:
            self._run.pause(self._chance.uniform(3, 12))
            paused = self._chance.random() < 0.5
            if paused:
                with stopped([psutil.Process(process.pid)]):
                    self._run.pause(self._chance.uniform(*STALL_S))
                self._run.pause(self._chance.uniform(0, 3))
        return (
            "a second projector came"
            + (", was stopped over its session" if paused else "")
            + " and was killed"
        )

    def _copies(self) -> str:
        kind = self._chance.choice(("mutations", "mutations", "backfill"))
        copied = copy_tails(self._run.bootstrap, self._run.cluster, kind, self._chance.choice((5, 50, 500)))
        return f"{copied} messages of the {kind} queues appended to them again"

    # --- what is lost ------------------------------------------------------------------------------------

    def _slice_folder(self) -> tuple[str, psutil.Process, Path]:
        """A node, and the folder of one of its slices that hold something."""
        nodes = [(name, one) for name, one in self._processes.services().items() if name.startswith("node-")]
        name, process = self._chance.choice(nodes)
        folders = Path(process.environ()["KEYTIDE_DATA_DIR"]).glob("nodes/*/slices/*/[0-9]*")
        return name, process, self._chance.choice(sorted(folder for folder in folders if folder.is_dir()))

    def _lose(self) -> str:
        name, process, folder = self._slice_folder()
        with stopped(family(process)):
            shutil.rmtree(folder)
            send(family(process), signal.SIGKILL)
        return f"{name} is killed and has lost {folder.parent.name}/{folder.name}"

    def _damage(self) -> str:
        """Bytes of one file of a slice are others after a kill."""
        name, process, folder = self._slice_folder()
        with stopped(family(process)):
            files = sorted(file for file in folder.rglob("*") if file.is_file() and file.stat().st_blocks)
            file = self._chance.choice(files)
            used = file.stat().st_blocks * 512
            at = self._chance.randrange(min(used, file.stat().st_size) or 1)
            with file.open("r+b") as opened:
                opened.seek(at)
                opened.write(self._chance.randbytes(min(64, max(1, file.stat().st_size - at))))
            send(family(process), signal.SIGKILL)
        return f"{name} is killed and {folder.parent.name}/{folder.name}/{file.name} is damaged at {at}"

    def _truncate(self) -> str:
        """A topic loses acknowledged records, as by an unclean election."""
        broker = self._processes.services()["kafka"]
        settings = Path(broker.cmdline()[-1]).read_text().splitlines()
        logs = next(Path(line.split("=", 1)[1]) for line in settings if line.startswith("log.dirs="))
        topic = self._chance.choice(sorted(self._run.truths))
        partition, lose = self._chance.randrange(4), self._chance.randrange(10, 300)
        self._run.rolled_back = True
        truth = self._run.truths[topic]
        with stopped([broker]), truth.cutting(partition, lambda: cut(logs, topic, partition, lose)) as lost:
            send([broker], signal.SIGKILL)
            deadline = time.monotonic() + 60
            while not self._answers() and time.monotonic() < deadline:
                self._run.pause(0.2)
        return f"{topic}[{partition}] has lost what it had from {lost.end} to {lost.had}"

    def _answers(self) -> bool:
        admin = AdminClient({"bootstrap.servers": self._run.bootstrap, "log_level": 0})
        try:
            return "kafka" in self._processes.services() and bool(admin.list_topics(timeout=2).brokers)
        except KafkaException:
            return False


def fresh_again(run: Run, when: str, limit: float = FRESH_LIMIT_S) -> float:
    """Wait until a stable scan of every index shows all that the source has now; seconds that it took.

    Args:
        limit: seconds without any build that moves (rebuilds of slices are builds), on a machine that is as
            fast as most.
    """
    began = time.monotonic()
    limit *= slowness()
    patience = run.patience(limit, 5 * limit)
    number = 0
    for target in run.targets():
        at_least = None
        while run.offered(target):
            if patience.over:
                took = time.monotonic() - began
                run.fail(
                    f"{target.name} does not show after {took:.0f} s, {when}, what the source had then",
                    state_of(run, target.name),
                )
                return took
            try:
                at_least = at_least or _ends(run, target.keyspace)
                number += 1
                with run.client(number) as client:
                    client.count(target.name, at_least=at_least, timeout_ms=3_000)
                break
            except KeytideError as error:
                if error.status not in (409, 502, 503, 504) and run.offered(target):
                    run.fail(f"{target.name} {when}: {error.status} {error.problem_type} {error}")
                run.pause(0.2)
            except (KafkaException, TimeoutError):
                run.pause(0.2)
    return time.monotonic() - began


def state_of(run: Run, name: str) -> list[str]:
    """What the coordinator says of an index that stands still."""
    try:
        with Admin(run.coordinator) as admin:
            index = admin.call("GET", f"/v1/indexes/{name}")
            stability = admin.call("GET", "/v1/stability")
            events = admin.call("GET", "/v1/events")
    except KeytideError as error:
        return [f"the coordinator: {error}"]
    return [str(index), str(stability), *(str(event) for event in events[-15:])]


def _ends(run: Run, topic: str) -> dict[str, int]:
    """Where readers of committed records stand at the end of a topic now."""
    admin = AdminClient({"bootstrap.servers": run.bootstrap, "log_level": 0})
    partitions = admin.list_topics(topic, timeout=5).topics[topic].partitions
    return {str(p): end for p, end in sorted(list_offsets(admin, topic, partitions, timeout=5).items())}
