"""The list of certificate authorities is read once, however many clients are made. What a server shows, and
what clients trust: wrong authorities, expired and renewed certificates, old versions of the protocol."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import httpx
import pytest

from keytide.catalog.records import JobRecord, NodeRecord
from keytide.cli.admin import CERTIFICATE_STEP, Admin
from keytide.client import AsyncClient, Client
from keytide.errors import ConfigurationError, RetryableError
from keytide.http.tls import AUTHORITY_VARIABLE, trusted
from keytide.serving.server import server_of
from keytide.settings.settings import SecuritySettings, load_settings
from streaming.slices import pins
from streaming.verify import driver
from tests.unit.certificates import Authority
from tests.unit.raw_node import LIMIT_S, STREAM_HEAD, Asked, Kind, RawNode, calling, chunked, counted
from tests.unit.scan_world import World


def test_clients_share_what_they_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    first = trusted()
    assert first.verify_mode is ssl.CERT_REQUIRED
    assert first.check_hostname

    def read_again(*_: object, **__: object) -> ssl.SSLContext:
        raise AssertionError("the list is read again")

    monkeypatch.setattr(httpx, "create_ssl_context", read_again)
    monkeypatch.setattr(ssl, "create_default_context", read_again)
    for _ in range(3):
        Admin("https://127.0.0.1:1").close()
        with Client("https://127.0.0.1:1"):
            pass


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers `[]`."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"[]"})


class Served:
    """A server with TLS.

    Attributes:
        authority: signs what it shows.
        files: certificate and key.
    """

    def __init__(self, folder: Path) -> None:
        self.authority = Authority.made(folder / "ca")
        self.files = (folder / "tls.crt", folder / "tls.key")
        self.authority.sign(*self.files)
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.url = f"https://127.0.0.1:{self.port}"
        security = SecuritySettings(tls_certificate=str(self.files[0]), tls_key=str(self.files[1]))
        self.server = server_of(app, load_settings().http, security, loop="uvloop", lifespan="off")
        self.thread = threading.Thread(target=lambda: self.server.run(sockets=[listener]))
        self.thread.start()

    def shown(self, context: ssl.SSLContext | None = None) -> bytes:
        """The certificate that a new connection gets."""
        if context is None:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            return secure.getpeercert(binary_form=True) or b""

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(LIMIT_S)
        assert not self.thread.is_alive()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    yield made
    made.stop()


def test_clients_trust_the_authority_that_is_named(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Admin(served.url) as admin, pytest.raises(RetryableError, match="CERTIFICATE_VERIFY") as caught:
        admin.call("GET", "/v1/nodes")
    assert caught.value.next_step == CERTIFICATE_STEP
    wrong = Authority.made(tmp_path / "wrong")
    with (
        Client(served.url, retries=0, tls_authority=str(wrong.certificate)) as client,
        pytest.raises(RetryableError, match="CERTIFICATE_VERIFY"),
    ):
        client.indexes()
    with Client(served.url, tls_authority=str(served.authority.certificate)) as client:
        assert list(client.indexes()) == []
    asyncio.run(_by_asyncio(served, wrong))
    (tmp_path / "k.toml").write_text(f'[security]\ntls_authority = "{served.authority.certificate}"\n')
    monkeypatch.setenv("KEYTIDE_CONFIG", str(tmp_path / "k.toml"))
    with Admin(served.url) as admin:
        assert admin.call("GET", "/v1/nodes") == []
    monkeypatch.setenv(AUTHORITY_VARIABLE, str(wrong.certificate))  # says more than the file
    with Admin(served.url) as admin, pytest.raises(RetryableError, match="CERTIFICATE_VERIFY"):
        admin.call("GET", "/v1/nodes")


async def _by_asyncio(served: Served, wrong: Authority) -> None:
    """The same by the other client."""
    async with AsyncClient(served.url, retries=0, tls_authority=str(wrong.certificate)) as client:
        with pytest.raises(RetryableError, match="CERTIFICATE_VERIFY"):
            await client.indexes()
    async with AsyncClient(served.url, tls_authority=str(served.authority.certificate)) as client:
        assert list(await client.indexes()) == []


@pytest.mark.parametrize("kind", get_args(Kind))
def test_clients_do_over_tls_what_they_do_without(kind: Kind, tmp_path: Path) -> None:
    """Connections are kept, replaced when they were ended, and ended when a stream is left."""
    authority = Authority.made(tmp_path / "ca")
    files = tmp_path / "tls.crt", tmp_path / "tls.key"
    authority.sign(*files)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*files)

    def react(asked: Asked, made: socket.socket) -> bytes | None:
        if not asked.path.endswith("scan"):
            return counted(asked.connection)
        made.sendall(STREAM_HEAD + chunked(b'{"id":"a"}\n', end=False))
        made.settimeout(LIMIT_S)
        assert made.recv(1) == b""
        node.ended.set()
        return None

    with RawNode(react, context) as node:
        trust = str(authority.certificate)
        with calling(kind, node.url, retries=0, tls_authority=trust) as caller:
            assert [caller.count(), caller.count()] == [0, 0]
            node.cut()
            assert [caller.count(), caller.count()] == [1, 1]
            lines = caller.client.scan("i").ndjson()
            assert caller.next(lines) == b'{"id":"a"}\n'
            caller.end(lines)
            assert node.ended.wait(LIMIT_S)
            assert caller.count() == 2


def test_drivers_trust_the_authority_of_their_settings(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever starts one by hand may have it in a file, where the coordinator has it in the environment."""
    made = World("CREATE INDEX i ON users (city) WITH (slices=1)", node_count=1)
    made.record(NodeRecord("n0", served.url, 0))
    made.record(JobRecord("j1", "verify", "users", [made.index("i").id], "RUNNING", 0))
    following = SimpleNamespace(catalog=lambda: made.catalog, close=lambda: None)
    monkeypatch.setattr(driver, "MetadataFollower", lambda *_: following)
    monkeypatch.setattr(driver, "admin", lambda _: nullcontext())
    monkeypatch.setattr(pins, "PIN_LIMIT_S", 0.0)
    security = {"tls_authority": str(served.authority.certificate)}
    settings = load_settings(data_dir=str(tmp_path), security=security)
    verify = driver.VerifyDriver(settings, "j1", threading.Event())
    with ExitStack() as held:
        _, context = verify.open(held, 1, lambda *_: None)
        with pytest.raises(RetryableError, match="answers with something else"):
            context.slices.pin()


def test_an_authority_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    for file in (tmp_path / "none.pem", Path(__file__)):
        with pytest.raises(ConfigurationError, match=r"security\.tls_authority") as caught:
            trusted(str(file))
        assert "PEM" in caught.value.next_step


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_of_the_protocol_are_refused(served: Served, version: ssl.TLSVersion) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    with pytest.raises((ssl.SSLError, ConnectionError)):
        served.shown(context)
    for newer in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context.maximum_version = newer
        context.minimum_version = newer
        assert served.shown(context)


def test_a_renewed_certificate_is_shown_without_a_restart(served: Served, tmp_path: Path) -> None:
    """And one that has expired is refused; half a pair changes nothing."""
    first = served.shown()
    served.authority.sign(*served.files, expired=True)
    expired = _another(served, first)
    client = ssl.create_default_context(cafile=str(served.authority.certificate))
    deadline = time.monotonic() + LIMIT_S
    while _trusts(served, client):  # it expires within a second
        assert time.monotonic() < deadline
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        served.shown(client)
    served.files[0].write_text("no certificate")
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        served.shown(client)
    served.authority.sign(*served.files)
    assert _another(served, expired) not in (first, expired)
    assert served.shown(client)


def _trusts(served: Served, client: ssl.SSLContext) -> bool:
    try:
        return bool(served.shown(client))
    except ssl.SSLCertVerificationError:
        return False


def _another(served: Served, last: bytes) -> bytes:
    deadline = time.monotonic() + LIMIT_S
    while (shown := served.shown()) == last:
        assert time.monotonic() < deadline
    return shown


def test_a_certificate_that_cannot_be_served_is_told_at_the_start(tmp_path: Path) -> None:
    authority = Authority.made(tmp_path / "ca")
    certificate, key, other = (tmp_path / name for name in ("tls.crt", "tls.key", "other.key"))
    authority.sign(tmp_path / "other.crt", other)
    authority.sign(certificate, key)
    missing = tmp_path / "missing"
    for pair in ((certificate, other), (certificate, missing), (missing, key), (key, certificate)):
        security = SecuritySettings(tls_certificate=os.fspath(pair[0]), tls_key=os.fspath(pair[1]))
        with pytest.raises(ConfigurationError, match="TLS cannot be served with"):
            server_of(app, load_settings().http, security)
