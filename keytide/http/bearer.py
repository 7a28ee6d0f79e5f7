"""The header by which clients show their API token."""

from __future__ import annotations

from keytide.errors import CallerError


def bearer(token: str) -> dict[str, str]:
    """The header; none without a token.

    Raises:
        CallerError: a header cannot hold it.
    """
    if not token:
        return {}
    if not token.isascii() or not token.isprintable() or token != token.strip():
        raise CallerError(
            "the API token holds characters that no token has: only printable ASCII can be sent",
            problem_type="bad-token",
            next_step="copy it again (KEYTIDE_TOKEN, or the argument `token`), without line ends and quotes",
        )
    return {"Authorization": f"Bearer {token}"}
