"""Who may do what on the admin API: tokens with scopes, or nobody but this machine."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable

from fastapi import Request

from keytide.errors import CallerError, ConfigurationError
from keytide.settings import SecuritySettings, Settings

SCOPES = ("read", "admin")


class NotAllowedError(CallerError):
    """No token, an unknown one, or one without the scope."""

    problem_type = "not-allowed"
    status = 401


def check_exposure(settings: Settings) -> None:
    """See that an API without tokens is not offered to other machines.

    Raises:
        ConfigurationError: it would be, or a token has a scope that does not exist.
    """
    host = settings.coordinator.host
    if not settings.security.tokens and not is_loopback(host):
        raise ConfigurationError(
            f"the admin API would listen on {host} without any API token, open to everyone who can reach it",
            next_step="set tokens under [security], or coordinator.host to 127.0.0.1",
        )
    for scopes in settings.security.tokens.values():
        if unknown := set(scopes) - set(SCOPES):
            raise ConfigurationError(
                f"there is no scope {sorted(unknown)[0]!r}", next_step=f"there are {' and '.join(SCOPES)}"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def needs(scope: str, security: SecuritySettings) -> Callable[[Request], Awaitable[None]]:
    """A FastAPI dependency: the request carries `Authorization: Bearer TOKEN` with that scope (admin may read
    too)."""

    async def check(request: Request) -> None:
        if not security.tokens:
            return
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        scopes = None
        for token, its in security.tokens.items():
            if kind.lower() == "bearer" and hmac.compare_digest(token.encode(), given.strip().encode()):
                scopes = its
        if scopes is None:
            raise NotAllowedError(
                "this needs an API token", next_step="send the header Authorization: Bearer TOKEN"
            )
        if scope not in scopes and "admin" not in scopes:
            raise NotAllowedError(
                f"this needs a token with the scope {scope}", status=403, next_step="use another token"
            )

    return check
