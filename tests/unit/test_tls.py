"""The list of certificate authorities is read once, however many clients are made."""

from __future__ import annotations

import ssl

import httpx
import pytest

from keytide.cli.admin import Admin
from keytide.client import Client
from keytide.tls import trusted


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
