"""A clock that is wrong, for Python processes of the test bed with this folder on PYTHONPATH: `time.time` and
`time.time_ns` are off by the seconds (a double) in the file that TEST_BED_CLOCK names, as long as they
are in it. What is not written in Python (librdkafka, Java) has the machine's clock."""

from __future__ import annotations

import mmap
import os
import struct
import time


def _set_off(path: str) -> None:
    with open(path, "rb") as file:
        offset = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    seconds = struct.Struct("d").unpack_from
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + seconds(offset)[0]
    time.time_ns = lambda: right_ns() + int(seconds(offset)[0] * 1e9)


if "TEST_BED_CLOCK" in os.environ:
    _set_off(os.environ["TEST_BED_CLOCK"])
