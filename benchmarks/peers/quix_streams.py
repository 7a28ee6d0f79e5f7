"""Quix Streams: two processes of one consumer group, in an environment that is made when it is asked for.

It asks for other releases of what Keytide uses, so it has an environment of its own in the cache folder. It
answers nobody outside: a document counts as found when its process has put its key into the state, whether
that was committed or not.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from confluent_kafka import ConsumerGroupState, KafkaException

from benchmarks.documents import PARTITIONS
from benchmarks.patience import limit
from benchmarks.peers.turn import START_LIMIT_S, Turn, begin, wait
from benchmarks.throughput import TOPIC
from deploy.jars import cache_folder
from deploy.process import ChildProcess
from keytide.kafka.clients import AdminClient

PACKAGE: Final = "quixstreams==3.28.1"
PROCESSES: Final = 2
WORKER: Final = Path(__file__).with_name("quix_worker.py")
INSTALL_LIMIT_S: Final = 600.0
REQUEST_LIMIT_S: Final = 10.0
_DONE: Final = "installed"


def why_not() -> str | None:
    """Why it cannot take part, and how it could; None when it can. Makes its environment."""
    folder = _environment()
    if (folder / _DONE).exists():
        return None
    shutil.rmtree(folder, ignore_errors=True)
    python = folder / "bin" / "python"
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE],
    ):
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_LIMIT_S)
        except (OSError, subprocess.SubprocessError) as error:
            said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
            shutil.rmtree(folder, ignore_errors=True)
            how = f"python -m venv {folder}; {python} -m pip install {PACKAGE}; touch {folder / _DONE}"
            return f"Quix Streams is not run, as it cannot be installed ({''.join(said)}): {how}"
    (folder / _DONE).touch()
    return None


def _environment() -> Path:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return cache_folder() / "peers" / f"{PACKAGE.replace('==', '-')}-python{version}"


def run(documents: int) -> dict[str, dict[str, float]]:
    """Its rate: ranges cannot be asked of it."""
    with begin(documents) as turn:
        return {"quix_streams": _turn(turn)}


def _turn(turn: Turn) -> dict[str, float]:
    progress = turn.folder / "progress"
    progress.write_bytes(bytes(8 * PARTITIONS))
    python = str(_environment() / "bin" / "python")
    children: list[ChildProcess] = []
    with ExitStack() as running:
        for number in range(1, PROCESSES + 1):
            folder = turn.folder / f"state-{number}"
            given = (turn.kafka.bootstrap, TOPIC, folder, progress)
            child = ChildProcess(
                f"Quix Streams {number}",
                [python, str(WORKER), *map(str, given)],
                log=turn.folder / f"quix-{number}.log",
            )
            children.append(running.enter_context(child))
        _wait_shared(children, turn.kafka.bootstrap)

        def found(ends: Mapping[int, int]) -> Callable[[], bool]:
            wanted = tuple(ends.get(partition, 0) for partition in range(PARTITIONS))
            return lambda: struct.unpack(f"<{PARTITIONS}q", progress.read_bytes()) == wanted

        return turn.measure(children, found)


def _wait_shared(children: list[ChildProcess], bootstrap: str) -> None:
    with AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}) as admin:
        wait(children, lambda: _shared(admin), limit(START_LIMIT_S), "has its partitions")


def _shared(admin: AdminClient) -> bool:
    """Whether the group is stable, and each of the processes has partitions of the source (and of changelogs,
    which are assigned as well)."""
    try:
        asked = admin.describe_consumer_groups(["quix"], request_timeout=REQUEST_LIMIT_S)
        group = asked["quix"].result(timeout=2 * REQUEST_LIMIT_S)
    except (KafkaException, TimeoutError):
        return False  # it is not there yet, or Kafka has other things to do
    shares = [
        sum(one.topic == TOPIC for one in member.assignment.topic_partitions) for member in group.members
    ]
    stable = group.state == ConsumerGroupState.STABLE
    return stable and len(shares) == PROCESSES and all(shares) and sum(shares) == PARTITIONS
