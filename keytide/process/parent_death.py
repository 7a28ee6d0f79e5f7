"""Children that do not outlive their parent, even when it is killed with -9: Linux's PR_SET_PDEATHSIG.

The kernel ties the signal to the parent *thread*, so whoever forks must do it from a thread that lives as
long as the child should.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> Callable[[], None] | None:
    """A `preexec_fn` for a child that is to be killed at the end of the thread that forks it; Linux only.

    All is looked up before the fork, so that the child only makes system calls.
    """
    if not sys.platform.startswith("linux"):
        return None
    return functools.partial(_ask, ctypes.CDLL(None, use_errno=True).prctl, os.getpid())


def follow_parent() -> None:
    """Have this process killed at the end of the thread that forked it; Linux only. For a child that asks by
    itself, where running code between fork and exec would be a risk."""
    if sys.platform.startswith("linux"):
        _ask(ctypes.CDLL(None, use_errno=True).prctl, os.getppid())


def _ask(prctl: Callable[..., int], parent: int) -> None:
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call: the signal will never come
        os._exit(1)
