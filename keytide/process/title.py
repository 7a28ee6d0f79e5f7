"""What `ps` and `/proc` show of a process that has become something else than it was started as.

The arguments lie one after the other in the process's memory, where the kernel reads them; others may be
written over them, as many bytes at most. Where they lie only glibc tells. What is there is compared with what
the kernel shows before anything is written; elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOM: Final = "-" * 128
"""An argument that leaves room for later ones."""
_SHOWN: Final = Path("/proc/self/cmdline")


def show_arguments(arguments: Sequence[str]) -> bool:
    """Have this process shown with other arguments, from its program on, cut to the room that there is;
    whether that can be done here."""
    if not sys.platform.startswith("linux"):
        return False
    shown = _SHOWN.read_bytes()
    try:
        place = ctypes.c_void_p.in_dll(ctypes.CDLL(None), "program_invocation_name").value
    except ValueError:  # another C library
        return False
    if not place or ctypes.string_at(place, len(shown)) != shown:
        return False
    told = b"".join(one.encode() + b"\0" for one in arguments)[: len(shown) - 1]
    ctypes.memmove(place, told.ljust(len(shown), b"\0"), len(shown))
    return True
