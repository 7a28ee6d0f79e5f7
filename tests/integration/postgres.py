"""A real PostgreSQL for the tests, from the system's packages: a cluster of its own in a temporary folder.

It refuses to run as root, so then it runs as the user `postgres` of the package (or `nobody`). It is small
and forgets on purpose (no fsync), and listens on a free port of the loopback with a password.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
import sqlalchemy as sql

from deploy.process import free_ports

LIMIT_S = 120.0
USER = "keytide"
PASSWORD = "s3cret/of the:tests@"


def programs() -> Path | None:
    """The folder with `initdb` and `postgres`, the newest release's; None when there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda at: int(at.parts[-3]))
    if found:
        return found[-1].parent
    path = shutil.which("initdb")
    return Path(path).resolve().parent if path else None


def require() -> Path:
    """The programs, or a skipped test (which fails the run in CI)."""
    found = programs()
    if found is None:
        pytest.skip("there is no PostgreSQL: sudo apt-get install postgresql")
    return found


class Postgres:
    """A server, as a context manager.

    Attributes:
        url: SQLAlchemy's, with the password.
        pid: of the server's main process.
    """

    def __init__(self) -> None:
        self._bin = require()
        # Not below pytest's folders: they are closed to the other user.
        self._temporary = tempfile.TemporaryDirectory(prefix="keytide-postgres-")
        self._folder = Path(self._temporary.name)
        self._user = _user()
        (self.port,) = free_ports(1)
        self.url = sql.URL.create(
            "postgresql+psycopg", USER, PASSWORD, "127.0.0.1", self.port, "postgres"
        ).render_as_string(hide_password=False)
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._server is not None
        return self._server.pid

    def __enter__(self) -> Self:
        password = self._folder / "password"
        password.write_text(PASSWORD)
        if self._user is not None:
            for path in (self._folder, password):
                os.chown(path, self._user.pw_uid, self._user.pw_gid)
        data = self._folder / "data"
        options = ["-A", "scram-sha-256", "-U", USER, f"--pwfile={password}", "--no-sync", "-E", "UTF8"]
        self._run([self._bin / "initdb", "-D", data, "--locale=C.UTF-8", *options])
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._temporary.cleanup()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self._folder,
            "fsync": "off",
            "max_connections": 20,
            "shared_buffers": "16MB",
            "autovacuum": "off",
        }
        given = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [self._bin / "postgres", "-D", self._folder / "data", *given],
                stdout=log,
                stderr=log,
                user=self._user.pw_uid if self._user else None,
                group=self._user.pw_gid if self._user else None,
                extra_groups=[] if self._user else None,
                cwd="/",
            )
        engine = sql.create_engine(self.url, connect_args={"connect_timeout": 5})
        deadline = time.monotonic() + LIMIT_S
        try:
            while True:
                try:
                    engine.connect().close()
                    return
                except sql.exc.OperationalError:
                    assert self._server.poll() is None, (self._folder / "log").read_text()
                    assert time.monotonic() < deadline, f"not up within {LIMIT_S:.0f} s"
                    time.sleep(0.05)
        finally:
            engine.dispose()

    def stop(self) -> None:
        """Stop it at once, whoever is connected; its data stays."""
        if self._server is not None and self._server.poll() is None:
            self._server.send_signal(signal.SIGCONT)
            self._server.send_signal(signal.SIGQUIT)
            self._server.wait(LIMIT_S)
        self._server = None

    def _run(self, command: list[str | Path]) -> None:
        ran = subprocess.run(
            command,
            capture_output=True,
            check=False,
            user=self._user.pw_uid if self._user else None,
            group=self._user.pw_gid if self._user else None,
            extra_groups=[] if self._user else None,
            cwd="/",
        )
        assert ran.returncode == 0, ran.stderr.decode()


def _user() -> pwd.struct_passwd | None:
    """Whom to run it as; None for whoever runs the tests."""
    if os.getuid() != 0:
        return None
    known = {one.pw_name: one for one in pwd.getpwall()}
    return known.get("postgres") or known["nobody"]
