"""A child process that is spoken with in lines, and ended when it stands still.

Theory of operation
===================
A child can stop without dying (SIGSTOP, a frozen container, an error in a library below it). Whoever waits
for it would wait for ever. So a child that works says an empty line now and then, and one that says nothing
for `stall_s` is ended by SIGKILL, which ends stopped processes too. How much there is to do plays no part: a
slow child that comes further is left alone. So is one that waits for the disk when it is looked at: no signal
would reach it, and another one would wait for the same disk.

Everything to the child is written without blocking: a child that does not read must not hold its parent.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Final

import psutil

from keytide.process.child import start_module

_LOOKS: Final = 20
"""At a silent child within `stall_s`."""
_CHUNK: Final = 1 << 16


class StalledError(Exception):
    """The child stood still; it was ended."""


class WatchedProcess:
    """A Python module that runs as a process. It should call `parent_death.follow_parent` first of all.

    Args:
        module: its name; the further arguments follow it.
        stall_s: how long it may say nothing while it is waited for.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, module: str, arguments: Sequence[str], stall_s: float) -> None:
        self._stall_s = stall_s
        self._rest = b""
        self._killed = False
        self._process = start_module(
            module, *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self.pid = self._process.pid
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)

    def alive(self) -> bool:
        """Whether it may still be spoken with."""
        return not self._killed and self._process.poll() is None

    def kill(self) -> None:
        """End it, whatever it does; safe from any thread."""
        self._killed = True
        self._process.kill()

    def close(self) -> int:
        """End it if it has not ended; its status."""
        self._process.kill()
        status = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        return status

    def lines(self, question: bytes = b"") -> Iterator[bytes]:
        """Hand over a question; the lines that the child says from now on, the empty ones left out, until it
        ends.

        Raises:
            StalledError: it stood still, and was ended.
        """
        last = time.monotonic()
        while True:
            said, question = self._turn(question)
            if said is None:
                if time.monotonic() - last >= self._stall_s:
                    self.kill()
                    raise StalledError(f"process {self.pid} stood still for {self._stall_s:g} s")
                last = time.monotonic() if self._waits_for_disk() else last
                continue
            if not said:
                return
            last = time.monotonic()
            *whole, self._rest = (self._rest + said).split(b"\n")
            yield from filter(None, whole)

    def _turn(self, question: bytes) -> tuple[bytes | None, bytes]:
        """Write and read what can be at once; (what was said, what is left to write). Nothing was said: None;
        it has ended: empty."""
        to, source = self._process.stdin, self._process.stdout
        if to is None or source is None:
            return b"", b""
        poll = select.poll()
        poll.register(source, select.POLLIN)
        if question:
            poll.register(to, select.POLLOUT)
        ready = dict(poll.poll(self._stall_s / _LOOKS * 1_000))
        if to.fileno() in ready:
            try:
                question = question[os.write(to.fileno(), question[:_CHUNK]) :]
            except BlockingIOError:
                pass
            except BrokenPipeError:
                question = b""  # it has ended, which reading tells
        if source.fileno() not in ready:
            return None, question
        return os.read(source.fileno(), _CHUNK), question

    def _waits_for_disk(self) -> bool:
        try:
            return bool(psutil.Process(self.pid).status() == psutil.STATUS_DISK_SLEEP)
        except psutil.Error:
            return False
