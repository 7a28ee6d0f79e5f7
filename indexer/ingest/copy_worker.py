"""The threads that fill copies: each asks its source, and puts what that answers on the disk.

A copy has a thread of its own, so a source that is silent holds up no other copy; the leader sees to it that
they are few. It is filled chunk after chunk: while one is put on the disk, by a second thread, the next is
asked for. When it cannot go on (its source is away or has not read so far, the disk is full) it waits for a
while. Each goes on where it was, also in the next process, and after what was in its folder before.

A limit on the rate is held by resting after each chunk. Copies that have no rate of their own share the
node's. When a copy's rate changes, what is left of its rest is dropped: it goes on at once, at the new rate.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final

import msgspec

from indexer.copying.messages import COPY_PATH, CopyRequest, GenerationGoneError, pack_request
from indexer.copying.rate_limit import RateLimit
from indexer.copying.target import CopyAnswer, CopyTarget, read_answer
from indexer.hosting.filling import FillProgress
from indexer.store.copies import StoreFilling
from indexer.store.interface import StoreDamagedError
from keytide.catalog.catalog import Catalog
from keytide.catalog.copies import CopyRecord
from keytide.errors import RetryableError
from keytide.http.blocking_nodes import BlockingNodeClient
from keytide.http.node_protocol import NoAnswerError, NodeUnavailableError, RefusedError
from keytide.process.worker import Worker

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.1
"""After an error; doubled with each further one. A source most often has not read the record so far."""
LONGEST_PAUSE_S: Final = 5.0
DAMAGED_PAUSE_S: Final = 5.0
"""After a copy whose rows were not those that were counted, doubled with each further one: all of it is read,
sent and written anew, and may be wrong where it comes from."""
LONGEST_DAMAGED_PAUSE_S: Final = 600.0

_WAITS: Final = "it waits for the last answer to the copy that was filled here before"


@dataclass(slots=True)
class _Job:
    """A copy to fill.

    Attributes:
        limit: the node's, or its own.
        pause: how long it waits after the next error, in seconds.
        damaged: how often its rows were not those that were counted.
        changed: set when its record has changed, or it is left. Cleared before that is looked at.
    """

    copy: CopyRecord
    folder: Path
    limit: RateLimit
    pause: float
    damaged: int = 0
    progress: FillProgress = field(default_factory=FillProgress)
    changed: threading.Event = field(default_factory=threading.Event)


class CopyWorker:
    """`CopyFiller` for the copies of one node.

    Args:
        catalog: the dictionary as this node has read it.
        node_url: where a node serves, None when unknown.
        nodes: asks them; closed with this.
        open_filling: opens what is in a folder.
        rate: bytes of answers per second, of all copies that have no rate of their own; 0 for no limit.
        count: told the bytes of each answer.
    """

    def __init__(
        self,
        catalog: Callable[[], Catalog],
        node_url: Callable[[str], str | None],
        nodes: BlockingNodeClient,
        open_filling: Callable[[Path], StoreFilling],
        rate: int,
        count: Callable[[int], object],
    ) -> None:
        self._catalog = catalog
        self._node_url = node_url
        self._nodes = nodes
        self._open_filling = open_filling
        self._limit = RateLimit(rate)
        self._count = count
        self._jobs: dict[str, _Job] = {}
        self._threads: dict[Path, Worker] = {}
        self._failure: BaseException | None = None
        self._lock = threading.Lock()

    # --- CopyFiller -----------------------------------------------------------------------------------

    def begin(self, copy: CopyRecord, folder: Path) -> None:
        with self._lock:
            job = self._jobs.get(copy.id)
            if job is None:
                job = self._jobs[copy.id] = _Job(copy, folder, self._limit_of(copy), FIRST_PAUSE_S)
                self._start(job)
                return
            if job.copy.source != copy.source:
                job.pause = FIRST_PAUSE_S
            if job.copy.rate != copy.rate:
                job.limit = self._limit_of(copy)
            job.copy = copy
        job.changed.set()

    def look(self, id_: str) -> FillProgress:
        with self._lock:
            job = self._jobs.get(id_)
            return FillProgress() if job is None else job.progress

    def leave(self, id_: str) -> None:
        with self._lock:
            job = self._jobs.pop(id_, None)
        if job is not None:
            job.changed.set()

    def check(self) -> None:
        """Raise the error that a thread has ended with, if it expected none such."""
        if self._failure is not None:
            raise self._failure

    def close(self, limit_s: float) -> bool:
        """Leave all copies.

        Args:
            limit_s: waits no longer for what is at hand.

        Returns:
            Whether all threads have ended.
        """
        for id_ in list(self._jobs):
            self.leave(id_)
        end = monotonic() + limit_s
        ended = all(one.wait(max(0.0, end - monotonic())) for one in self._threads.values())
        if ended:
            self._nodes.close()
        return ended

    def _limit_of(self, copy: CopyRecord) -> RateLimit:
        return RateLimit(copy.rate) if copy.rate else self._limit

    def _start(self, job: _Job) -> None:
        """Begin the thread of a copy; it waits for the one that was at work in the folder last."""
        self._threads = {folder: one for folder, one in self._threads.items() if one.running}
        before = self._threads.get(job.folder)
        thread = Worker(f"copy {job.copy.id}", self._failed, lambda: self._work(job, before))
        self._threads[job.folder] = thread
        thread.open()

    def _failed(self, error: BaseException) -> None:
        self._failure = error

    # --- the thread of a copy -------------------------------------------------------------------------

    def _work(self, job: _Job, before: Worker | None) -> None:
        """Fill a copy until it is done, or left."""
        if before is not None:
            job.progress = FillProgress(error=_WAITS)
            before.wait()
            job.progress = FillProgress()
        while not job.progress.done:
            job.changed.clear()
            if self._left(job):
                return
            job.changed.wait(self._fill(job))

    def _fill(self, job: _Job) -> float:
        """Fill a copy until it is done, cannot go on for now, or is to be filled from here no more. Returns
        how long it waits then, in seconds."""
        copy = job.copy
        try:
            filling = self._open_filling(job.folder)
            try:
                done = self._fill_on(job, copy, CopyTarget(copy, filling))
            finally:
                filling.close()
        except RetryableError as error:
            return self._waits(job, error.message)
        except StoreDamagedError as error:
            job.damaged += 1
            pause: float = min(DAMAGED_PAUSE_S * 2 ** (job.damaged - 1), LONGEST_DAMAGED_PAUSE_S)
            return max(pause, self._waits(job, error.message))
        except OSError as error:
            if not self._left(job):
                raise
            log.info("copy %s was deleted at its work: %s", copy.id, error)
        else:
            if done:
                log.info("copy %s is all there", copy.id)
                job.progress = job.progress._replace(error="", done=True)
        return 0.0

    def _waits(self, job: _Job, why: str) -> float:
        if why != job.progress.error:
            log.warning("copy %s waits: %s", job.copy.id, why)
        job.progress = job.progress._replace(error=why)
        with self._lock:
            pause, job.pause = job.pause, min(2 * job.pause, LONGEST_PAUSE_S)
        return pause

    def _fill_on(self, job: _Job, copy: CopyRecord, target: CopyTarget) -> bool:
        """Whether it is done."""
        job.progress = job.progress._replace(rows=target.rows)
        with ThreadPoolExecutor(1, thread_name_prefix=f"put {copy.id}") as disk:
            put: Future[None] = disk.submit(lambda: None)
            asks = None if target.done else target.request()
            try:
                while asks is not None:
                    asked = monotonic()
                    body = self._ask(copy, msgspec.structs.replace(asks, most_bytes=job.limit.chunk_bytes))
                    if self._elsewhere(job, copy):
                        return False
                    if body is None:
                        put.result()
                        target.gone()
                        asks = target.request()
                        continue
                    self._count(len(body))
                    answer = read_answer(asks, body)
                    put.result()  # else two of them would wait for the disk, and more
                    put = disk.submit(self._put, job, target, answer)
                    asks = answer.behind(asks)
                    if asks is not None and not self._rest(job, copy, len(body), asked):
                        return False
            finally:
                put.result()  # its error comes before any other
        return target.done

    def _put(self, job: _Job, target: CopyTarget, answer: CopyAnswer) -> None:
        target.put(answer)
        error = job.progress.error if job.damaged else ""  # that it was is to be seen all the while
        job.progress = FillProgress(target.rows, target.rows_total, error)
        job.pause = FIRST_PAUSE_S

    def _rest(self, job: _Job, copy: CopyRecord, size: int, asked: float) -> bool:
        """Rest after so many bytes. Returns whether it is to be filled on from where it was."""
        with self._lock:
            job.limit.take(size, asked)
        while True:
            job.changed.clear()
            if self._elsewhere(job, copy):
                return False
            # Read anew each time: it may have another limit by now, or others have taken of the same.
            if (left_s := job.limit.due - monotonic()) <= 0:
                return True
            job.changed.wait(left_s)

    def _left(self, job: _Job) -> bool:
        """Whether a copy is not to be filled on."""
        with self._lock:
            return self._jobs.get(job.copy.id) is not job

    def _elsewhere(self, job: _Job, copy: CopyRecord) -> bool:
        """Whether a copy is not to be filled on, or not from where it was."""
        return self._left(job) or job.copy.source != copy.source

    def _ask(self, copy: CopyRecord, request: CopyRequest) -> bytes | None:
        """The source's answer; None when what the copy has is gone.

        Raises:
            NodeUnavailableError: there is none.
        """
        url = self._node_url(copy.source)
        if url is None:
            raise NodeUnavailableError(f"node {copy.source} is not known to be running")
        try:
            return self._nodes.ask(url + COPY_PATH, pack_request(request), self._catalog().secret)
        except RefusedError as refused:
            if refused.type == GenerationGoneError.problem_type and request.generation:
                return None
            raise NodeUnavailableError(f"node {copy.source} {refused}") from refused
        except NoAnswerError as error:
            raise NodeUnavailableError(f"node {copy.source} cannot be asked: {error}") from error
