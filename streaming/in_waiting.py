"""`python -m streaming.in_waiting`: a driver that is not needed yet, with all loaded that it will need.

Theory of operation: to start Python and load what a driver is made of takes about a second, more than all
else of a small build. So the coordinator that leads has one such process wait (`build.driver_in_waiting`),
and tells it on its standard input, in one line, which driver it is to be: its module and arguments, its log,
and what its environment says of it. From then on it is that driver, as if it had been started so. Until then
it has asked nobody anything, and holds nothing but memory. When its input ends instead, it ends.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from importlib.metadata import version
from typing import Final

import msgspec

from keytide.process.program import begin
from keytide.process.title import show_arguments
from streaming.drivers.without_pandas import do_without_pandas

LOADED: Final = (
    "streaming.backfill.driver",
    "streaming.repair.driver",
    "streaming.sample.sampling",
    "streaming.verify.driver",
)
"""What drivers are made of, but for what Spark needs."""


class Orders(msgspec.Struct):
    """What the coordinator tells it (`coordinator.process.driver_in_waiting`).

    Attributes:
        module: is run, as by `python -m`.
        arguments: of that.
        log: file that takes what it prints, at its end.
        environment: what is to be added to it.
    """

    module: str
    arguments: list[str]
    log: str
    environment: dict[str, str]


def main() -> None:
    """Wait, then be a driver."""
    begin()
    do_without_pandas()
    for module in LOADED:
        importlib.import_module(module)
    release = version("keytide")
    os.write(1, b"1")  # (it has loaded)
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return  # the coordinator has ended, or needs it no more
    orders = msgspec.json.decode(line, type=Orders)
    _take_over(orders)
    if version("keytide") != release:  # the installed one is another by now: it is not mixed with this one
        os.execv(sys.executable, [sys.executable, "-m", orders.module, *orders.arguments])
    runpy.run_module(orders.module, run_name="__main__", alter_sys=True)


def _take_over(orders: Orders) -> None:
    """Look like the process that would have been started for it."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(orders.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for taken, place in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(taken, place)
    os.close(nothing)
    os.close(log)
    os.environ.update(orders.environment)
    sys.argv[1:] = orders.arguments
    show_arguments([sys.executable, "-m", orders.module, *orders.arguments])


if __name__ == "__main__":
    main()
