"""`python -m projector`: one projector process. Settings come from `keytide.toml` and `KEYTIDE_*`.

Prints one line `ready <url or ->` on stdout when it works (the URL is where metrics are served). SIGTERM and
SIGINT end it in order: what is in flight is awaited, offsets are committed, the partitions go to the other
projectors at once.
"""

from __future__ import annotations

import logging
import signal
import sys
from threading import Event as Flag
from types import FrameType

from confluent_kafka import KafkaException

from keytide.errors import ConfigurationError, KeytideError
from keytide.process import metrics
from keytide.process.program import log_to_stderr, no_arguments, say_ready, spare_collections
from keytide.settings.settings import load_settings
from projector.service.projector import projector

log = logging.getLogger("projector")


def main() -> int:
    """Run until told to stop; the process's exit status."""
    log_to_stderr()
    stop = Flag()

    def end(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    # A poll makes ten thousand message objects, all freed by their counts: looking for cycles among them, as
    # often as the default has it, takes a tenth of the time.
    spare_collections(100_000)
    try:
        settings = load_settings()
        port = settings.projector.metrics_port
        metrics.build_info("projector")
        metrics.serve(port, settings.projector.metrics_host)
        url = f"http://{settings.projector.metrics_host}:{port}/metrics" if port else "-"
        projector(settings).run(stop, lambda: say_ready(url))
    except ConfigurationError as error:
        print(f"{error.message}\n{error.next_step}".strip(), file=sys.stderr)
        return 2
    except (KeytideError, KafkaException) as error:
        log.exception("the projector ends: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    no_arguments("projector", __doc__)
    sys.exit(main())
