"""Readers at a rate, and what they notice: how long whole scans take from when each was due, so that one that
stands still makes those behind it late, as it would for users; and which were refused."""

from __future__ import annotations

import http.client
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.harness import say
from benchmarks.latency import connect, scan_body, send_scan
from keytide.process.worker import Worker


class Scans:
    """Scans at a rate through one node, while the block runs.

    Attributes:
        ms: part -> of each scan that was due in it, from then on.
        sent_ms: the same from when it was sent: what one scan takes, however late those before it were.
        refused: why -> how often.
    """

    def __init__(self, url: str, rows: int, per_second: int) -> None:
        self.ms: dict[str, list[float]] = defaultdict(list)
        self.sent_ms: dict[str, list[float]] = defaultdict(list)
        self.refused: dict[str, int] = defaultdict(int)
        self._rows = rows
        self._every_s = 1 / per_second
        self._part = ""
        self._url = url
        self._worker = Worker("scans", None, self._run)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Keep what is measured in the block under a name."""
        self._part = name
        try:
            yield
        finally:
            self._part = ""

    def _run(self) -> None:
        chance, due = random.Random(7), time.perf_counter()
        connection = connect(self._url)
        while not self._worker.stopping.is_set():
            due += self._every_s
            if (ahead := due - time.perf_counter()) > 0:
                time.sleep(ahead)
            part, sent = self._part, time.perf_counter()
            try:
                status, answer = send_scan(connection, scan_body(chance, self._rows))
            except (OSError, http.client.HTTPException) as error:
                self.refused["no-answer"] += 1
                say(f"no answer of {self._url}: {error!r}")
                connection.close()  # (the next scan opens it again)
                continue
            if status != 200:
                problem = json.loads(answer)
                self.refused[problem["type"]] += 1
                say(f"refused: {problem['type']}: {problem.get('detail')}")
            elif part:
                done = time.perf_counter()
                self.ms[part].append((done - due) * 1000)
                self.sent_ms[part].append((done - sent) * 1000)
        connection.close()

    def __enter__(self) -> Scans:
        self._worker.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.close(90)
        self._worker.check()
