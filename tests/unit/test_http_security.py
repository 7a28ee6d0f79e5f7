"""Who may ask the HTTP servers: scopes of tokens, addresses that need them, settings that make no sense."""

from __future__ import annotations

import pytest

from keytide.errors import ConfigurationError
from keytide.serving.listener import listen
from keytide.serving.security import (
    Guard,
    NotAllowedError,
    TokenScope,
    check_exposure,
    is_loopback,
    reading_token,
)
from keytide.settings.settings import SecuritySettings

TOKENS = {"r": ["read"], "a": ["admin"], "schlüssel": ["read"]}


def refused(authorization: str, scope: TokenScope) -> int:
    """The status of the refusal, 0 if there is none."""
    try:
        Guard(SecuritySettings(tokens=TOKENS)).require(authorization, scope)
    except NotAllowedError as error:
        return error.status
    return 0


@pytest.mark.parametrize(
    ("authorization", "read", "admin"),
    [
        ("", 401, 401),
        ("Bearer", 401, 401),
        ("Bearer ", 401, 401),
        ("Bearer x", 401, 401),
        ("Basic r", 401, 401),
        ("r", 401, 401),
        ("Bearer r", 0, 403),
        ("bearer   r ", 0, 403),
        ("Bearer a", 0, 0),
        ("Bearer ra", 401, 401),
        ("Bearer " + "schlüssel".encode().decode("latin-1"), 0, 403),
        ("Bearer ☃", 401, 401),
    ],
)
def test_a_token_opens_what_its_scope_says(authorization: str, read: int, admin: int) -> None:
    assert (refused(authorization, "read"), refused(authorization, "admin")) == (read, admin)


def test_without_tokens_all_may_pass() -> None:
    Guard(SecuritySettings()).require("", "admin")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("", 0),
        ("127.0.0.1:8091", 0),
        ("localhost:8091", 0),
        ("keytide.localhost", 0),
        ("[::1]:8091", 0),
        ("[::ffff:127.0.0.1]", 0),
        ("box", 0),
        ("evil.example:8091", 403),
        ("EVIL.example.", 403),
        ("127.0.0.1.evil.example", 403),
    ],
)
def test_without_tokens_no_web_page_is_a_reader(host: str, status: int) -> None:
    guard = Guard(SecuritySettings())
    if status:
        with pytest.raises(NotAllowedError) as caught:
            guard.require("", "read", host)
        assert caught.value.status == status
    else:
        guard.require("", "read", host)
    Guard(SecuritySettings(tokens=TOKENS)).require("Bearer r", "read", host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_tokens(host: str) -> None:
    assert is_loopback(host)
    check_exposure("the server", host, SecuritySettings(), "server.host")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "a.example"])
def test_other_addresses_do(host: str) -> None:
    with pytest.raises(ConfigurationError, match="without any API token") as caught:
        check_exposure("the server", host, SecuritySettings(), "server.host")
    assert "server.host" in caught.value.next_step
    check_exposure("the server", host, SecuritySettings(tokens=TOKENS), "server.host")


@pytest.mark.parametrize(
    ("security", "what"),
    [
        (SecuritySettings(tokens={"": ["admin"]}), "empty"),
        (SecuritySettings(tokens={"x ": ["admin"]}), "space"),
        (SecuritySettings(tokens={"x": ["write"]}), "no scope 'write'"),
        (SecuritySettings(tokens={"x": []}), "has no scope"),
        (SecuritySettings(tls_certificate="cert.pem"), "only one"),
        (SecuritySettings(tls_key="key.pem"), "only one"),
    ],
)
def test_settings_by_half_are_refused(security: SecuritySettings, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what) as caught:
        check_exposure("the server", "127.0.0.1", security, "server.host")
    assert caught.value.next_step


def test_servers_read_from_each_other_with_the_least_token() -> None:
    assert reading_token(SecuritySettings()) == ""
    assert reading_token(SecuritySettings(tokens={"a": ["admin"], "z": ["read"]})) == "z"
    assert reading_token(SecuritySettings(tokens={"a": ["admin"], "b": ["read", "admin"]})) == "a"


def test_an_address_that_is_taken_says_which_setting_to_change() -> None:
    listener, url = listen("the server", "127.0.0.1", 0, tls=False, setting="server.port")
    with listener:
        port = listener.getsockname()[1]
        assert url == f"http://127.0.0.1:{port}"
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}") as caught:
            listen("the server", "127.0.0.1", port, tls=True, setting="server.port")
    assert "server.port" in caught.value.next_step
