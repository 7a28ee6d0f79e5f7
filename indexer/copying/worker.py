"""The thread that fills copies: asks the sources, and puts what they answer on the disk.

One copy is filled at a time, chunk after chunk. When it cannot go on (its source is away or has not read so
far, the disk is full) it waits for a while, and the others have their turn meanwhile. Each goes on where it
was, also in the next process. A limit on the rate is held by resting after each chunk.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

from indexer.copying.messages import COPY_PATH, GenerationGoneError, pack_request
from indexer.copying.target import CopyTarget
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

_WAITS: Final = "it waits for another copy that is being filled"


@dataclass(slots=True)
class _Job:
    """A copy to fill.

    Attributes:
        due: when it goes on, in seconds.
        pause: how long it waits after the next error.
    """

    copy: CopyRecord
    folder: Path
    progress: FillProgress
    due: float
    pause: float

    def failed(self, error: RetryableError | StoreDamagedError) -> None:
        if error.message != self.progress.error:
            log.warning("copy %s waits: %s", self.copy.id, error)
        self.progress = self.progress._replace(error=error.message)
        self.due = monotonic() + self.pause
        self.pause = min(2 * self.pause, LONGEST_PAUSE_S)


class CopyWorker(Worker):
    """`CopyFiller` for the copies of one node. An error that it does not expect ends it; whoever opened it
    asks `check`.

    Args:
        catalog: the dictionary as this node has read it.
        node_url: where a node serves, None when unknown.
        nodes: asks them; closed with this.
        open_filling: opens what is in a folder.
        rate: bytes of answers per second, of all copies; 0 for no limit.
    """

    def __init__(
        self,
        catalog: Callable[[], Catalog],
        node_url: Callable[[str], str | None],
        nodes: BlockingNodeClient,
        open_filling: Callable[[Path], StoreFilling],
        rate: int,
    ) -> None:
        super().__init__("copies", None, self._work)
        self._catalog = catalog
        self._node_url = node_url
        self._nodes = nodes
        self._open_filling = open_filling
        self._rate = rate
        self._jobs: dict[str, _Job] = {}
        self._lock = threading.Lock()
        self._news = threading.Event()

    # --- CopyFiller -----------------------------------------------------------------------------------

    def begin(self, copy: CopyRecord, folder: Path) -> None:
        with self._lock:
            job = self._jobs.get(copy.id)
            if job is None:
                self._jobs[copy.id] = _Job(copy, folder, FillProgress(error=_WAITS), 0.0, FIRST_PAUSE_S)
            elif job.copy != copy:
                job.copy, job.due, job.pause = copy, 0.0, FIRST_PAUSE_S
        self._news.set()

    def look(self, id_: str) -> FillProgress:
        with self._lock:
            job = self._jobs.get(id_)
            return FillProgress() if job is None else job.progress

    def leave(self, id_: str) -> None:
        with self._lock:
            self._jobs.pop(id_, None)
        self._news.set()

    def close(self, limit_s: float | None = None) -> bool:
        self.stopping.set()
        self._news.set()
        return super().close(limit_s)

    # --- the thread -----------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while not self.stopping.is_set():
                job, wait_s = self._next()
                if job is None:
                    self._news.wait(wait_s)
                else:
                    self._fill(job)
        finally:
            self._nodes.close()

    def _next(self) -> tuple[_Job | None, float | None]:
        """The copy to go on with now, or else how long there is none."""
        with self._lock:
            self._news.clear()
            waiting = [job for job in self._jobs.values() if not job.progress.done]
            job = min(waiting, key=lambda one: one.due, default=None)
        wait_s = None if job is None else job.due - monotonic()
        return (None, wait_s) if wait_s is None or wait_s > 0 else (job, None)

    def _fill(self, job: _Job) -> None:
        """Fill one copy until it is done, cannot go on for now, or is left."""
        with self._lock:
            copy = job.copy
        try:
            filling = self._open_filling(job.folder)
            try:
                done = self._fill_on(job, copy, CopyTarget(copy, filling))
            finally:
                filling.close()
        except (RetryableError, StoreDamagedError) as error:
            with self._lock:
                job.failed(error)
        except OSError as error:
            if not self._left(job, copy):
                raise
            log.info("copy %s was deleted at its work: %s", copy.id, error)
        else:
            if done:
                log.info("copy %s is all there", copy.id)
                with self._lock:
                    job.progress = job.progress._replace(error="", done=True)

    def _fill_on(self, job: _Job, copy: CopyRecord, target: CopyTarget) -> bool:
        """Whether it is done."""
        with self._lock:
            error = "" if job.progress.error == _WAITS else job.progress.error
            job.progress = FillProgress(target.rows, job.progress.rows_total, error)
        while not target.done:
            body = self._ask(copy, target)
            if self._left(job, copy):
                return False
            if body is not None:
                target.take(body)
                with self._lock:
                    job.progress = FillProgress(target.rows, target.rows_total)
                    job.pause = FIRST_PAUSE_S
                if self._rate and self.stopping.wait(len(body) / self._rate):
                    return False
        return True

    def _left(self, job: _Job, copy: CopyRecord) -> bool:
        """Whether a copy is not to be filled on, or not from where it was."""
        with self._lock:
            return self.stopping.is_set() or self._jobs.get(copy.id) is not job or job.copy != copy

    def _ask(self, copy: CopyRecord, target: CopyTarget) -> bytes | None:
        """The source's answer; None when what the copy has is gone.

        Raises:
            NodeUnavailableError: there is none.
        """
        url = self._node_url(copy.source)
        if url is None:
            raise NodeUnavailableError(f"node {copy.source} is not known to be running")
        request = target.request()
        try:
            return self._nodes.ask(url + COPY_PATH, pack_request(request), self._catalog().secret)
        except RefusedError as refused:
            if refused.type == GenerationGoneError.problem_type and request.generation:
                target.gone()
                return None
            raise NodeUnavailableError(f"node {copy.source} {refused}") from refused
        except NoAnswerError as error:
            raise NodeUnavailableError(f"node {copy.source} cannot be asked: {error}") from error
