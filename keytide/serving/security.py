"""Who may ask the HTTP servers (coordinator and nodes): tokens with scopes, or nobody but this machine.

Knows no web framework: a server gives the value of the header `Authorization` and the scope that it asks for.
"""

from __future__ import annotations

import hmac
import ipaddress
from functools import lru_cache
from typing import Final, Literal, get_args

from keytide.errors import CallerError, ConfigurationError
from keytide.settings.settings import SecuritySettings

TokenScope = Literal["read", "admin"]
SCOPES: Final[tuple[str, ...]] = get_args(TokenScope)


class NotAllowedError(CallerError):
    """No token, an unknown one (401), or one without the scope (403)."""

    problem_type = "not-allowed"
    status = 401


class Guard:
    """Decides about requests. Without tokens it lets all pass: `check_exposure` keeps others out then."""

    def __init__(self, security: SecuritySettings) -> None:
        self._scopes = {token.encode(): frozenset(scopes) for token, scopes in security.tokens.items()}

    def require(self, authorization: str, scope: TokenScope, host: str = "") -> None:
        """See that a request may do what needs `scope`; `admin` may read too.

        Without tokens, a request that was sent to a public name is refused: a web page in a browser on this
        machine can let its own name point to loopback (DNS rebinding) and would then be a reader.

        Args:
            authorization: the header's value as servers decode it (latin-1), "" without one.
            host: the header `Host`, "" without one.

        Raises:
            NotAllowedError: it may not.
        """
        if not self._scopes:
            if _is_public_name(host):
                raise NotAllowedError(
                    f"this was sent to {host}, and a server without API tokens serves this machine only",
                    status=403,
                    next_step="ask 127.0.0.1 or localhost, or set tokens under [security]",
                )
            return
        kind, _, given = authorization.partition(" ")
        sent = given.strip().encode("latin-1", errors="replace")
        scopes: frozenset[str] | None = None
        for token, its in self._scopes.items():  # all of them, so that the time tells nothing
            if hmac.compare_digest(token, sent):
                scopes = its
        if scopes is None or kind.lower() != "bearer":
            raise NotAllowedError(
                "this needs an API token", next_step="send the header Authorization: Bearer TOKEN"
            )
        if scope not in scopes and "admin" not in scopes:
            raise NotAllowedError(
                f"this needs a token with the scope {scope}", status=403, next_step="use another token"
            )


def reading_token(security: SecuritySettings) -> str:
    """A token by which one server may read from another, the one that may least; "" when there are none."""
    able = [token for token, scopes in security.tokens.items() if scopes]
    return min(able, key=lambda token: ("admin" in security.tokens[token], token), default="")


def check_exposure(server: str, host: str, security: SecuritySettings, setting: str) -> None:
    """See that a server without tokens is not offered to other machines, and that the settings make sense.

    Args:
        server: what to call it in the message, such as "the admin API".
        host: what it listens on.
        setting: the name of the setting that says so.

    Raises:
        ConfigurationError: it would be open to everyone, or tokens or TLS are set by half.
    """
    if not security.tokens and not is_loopback(host):
        raise ConfigurationError(
            f"{server} would listen on {host} without any API token, open to everyone who can reach it",
            next_step=f"set tokens under [security], or {setting} to 127.0.0.1",
        )
    for token, scopes in security.tokens.items():
        if not token.strip() or token != token.strip():
            raise ConfigurationError(
                "an API token is empty, or begins or ends with a space", next_step="set a long random one"
            )
        if unknown := set(scopes) - set(SCOPES):
            raise ConfigurationError(
                f"there is no scope {sorted(unknown)[0]!r}", next_step=f"there are {' and '.join(SCOPES)}"
            )
        if not scopes:
            raise ConfigurationError(
                "an API token has no scope", next_step=f"give it one of {', '.join(SCOPES)}, or remove it"
            )
    if bool(security.tls_certificate) != bool(security.tls_key):
        raise ConfigurationError(
            "TLS needs a certificate and its key, and only one of the two is set",
            next_step="set both tls_certificate and tls_key under [security], or neither",
        )


@lru_cache(maxsize=64)  # asked for every request, and nearly always the same
def _is_public_name(host: str) -> bool:
    """Whether a `Host` header has a name that anybody could let point to this machine. Addresses, localhost
    and names of one word are not."""
    name = host.partition(":")[0].lower().rstrip(".")
    if host.startswith("[") or "." not in name or name.endswith(".localhost"):
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return True
    return False


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
