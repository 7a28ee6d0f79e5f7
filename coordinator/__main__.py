"""`python -m coordinator`: the coordinator as a process. Settings come from keytide.toml and KEYTIDE_*
variables."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from types import FrameType

from coordinator.election.claim import FencedError
from coordinator.http.api import create_app
from coordinator.process.service import CoordinatorService
from keytide.errors import KeytideError
from keytide.process.private_files import private_folder
from keytide.process.program import log_to_stderr, no_arguments, say_ready, spare_collections
from keytide.process.worker import Worker
from keytide.serving.listener import listen
from keytide.serving.security import check_exposure
from keytide.serving.server import Server, server_of
from keytide.settings.settings import Settings, load_settings

log = logging.getLogger("coordinator")

EXIT_CALLER = 2
"""Something is wrong outside: settings, Kafka."""
EXIT_BUG = 70
EXIT_FENCED = 75
"""Another coordinator leads now. Start it again: it stands by then."""
SERVING_LIMIT_S = 30.0
END_LIMIT_S = 5.0
"""One that does not lead waits so long for its last question to Kafka: there is nothing to put in order."""


def main() -> int:
    """Run until SIGTERM or SIGINT; the exit status."""
    log_to_stderr()
    try:
        return run(load_settings())
    except KeytideError as error:
        print(f"{error.message}\n{error.next_step}".strip(), file=sys.stderr)
    return EXIT_CALLER


def run(settings: Settings, driver_command: list[str] | None = None) -> int:
    """Lead the cluster, or stand by until nobody else does, and serve the admin API.

    Args:
        driver_command: what runs a Spark driver, `streaming.backfill` when None.

    Raises:
        KeytideError: it cannot begin.
    """
    security, server_name = settings.security, "the admin API"
    host, port = settings.coordinator.host, settings.coordinator.port
    check_exposure(server_name, host, security, "coordinator.host")
    private_folder(settings.data_dir, "data_dir")
    listener, url = listen(
        server_name, host, port, tls=bool(security.tls_certificate), setting="coordinator.port"
    )
    failures: list[BaseException] = []
    serving = threading.Event()

    def failed(error: BaseException) -> None:
        failures.append(error)
        server.should_exit = True

    service = CoordinatorService(settings, failed, driver_command, url)
    server = server_of(create_app(service, url, serving.set), settings.http, security)

    def lead() -> None:
        """Stand by, lead, and say so once requests are answered too."""
        service.start()
        spare_collections()
        if service.leads and serving.wait(SERVING_LIMIT_S):
            say_ready(url)

    _end_on_signals(server)
    leading = Worker("leading", failed, lead)
    leading.open()
    server.run(sockets=[listener])
    service.give_up()
    if leading.close(None if service.leads else END_LIMIT_S) or service.leads:
        leading.close()
        service.stop()
    if not failures:
        return 0
    if isinstance(failures[0], FencedError):
        print(f"{failures[0].message}\n{failures[0].next_step}", file=sys.stderr)
        return EXIT_FENCED
    if isinstance(failures[0], KeytideError) and failures[0].status != 500:
        raise failures[0]
    log.critical("the coordinator ends because of a bug", exc_info=failures[0])
    return EXIT_BUG


def _end_on_signals(server: Server) -> None:
    """uvicorn raises SIGTERM and SIGINT again once it has stopped; without handlers of our own the process
    would end there, before the service has stopped what it started."""

    def end(_number: int, _frame: FrameType | None) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


if __name__ == "__main__":
    no_arguments("coordinator", __doc__)
    sys.exit(main())
