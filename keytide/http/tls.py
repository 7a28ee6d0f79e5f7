"""TLS: the certificates that clients over HTTP trust, and the one that a server shows.

`httpx` reads the list of authorities for every client that is made: 25 ms of processor time (2 cores), more
than all else that a short-lived client does. So it is read once in a process. Which authority signs a
cluster's certificates is said by `security.tls_authority`; without it the usual ones are trusted, or those
that `SSL_CERT_FILE` and `SSL_CERT_DIR` name.
"""

from __future__ import annotations

import logging
import os
import ssl
from functools import cache
from typing import Final

from keytide.errors import ConfigurationError

log = logging.getLogger(__name__)

AUTHORITY_VARIABLE: Final = "KEYTIDE_SECURITY__TLS_AUTHORITY"
"""Where clients that are given no authority look for one: they read no file of settings."""


def trusted(authority: str = "") -> ssl.SSLContext:
    """What a client trusts. Threads may share it.

    Args:
        authority: file of certificates (PEM), which are the only ones trusted then; "" for what the
            environment names, else the usual ones.

    Raises:
        ConfigurationError: the file cannot be read, or holds no certificate.
    """
    return _trusted(authority or os.environ.get(AUTHORITY_VARIABLE, ""))


@cache
def _trusted(authority: str) -> ssl.SSLContext:
    if authority:
        try:
            context = ssl.create_default_context(cafile=authority)
        except OSError as error:  # ssl.SSLError is one
            raise ConfigurationError(
                f"security.tls_authority: {authority} holds no certificates that can be read: {error}",
                next_step="name a file in PEM of those who signed the servers' certificates",
            ) from error
    else:
        import httpx  # which nodes would else load for nothing

        context = httpx.create_ssl_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class ServedCertificate:
    """A server's certificate and key, which are read again when their files change: renewed ones are shown to
    new connections within a second, without a restart.

    Args:
        certificate, key: files (PEM).

    Raises:
        ConfigurationError: they cannot be read, or do not belong together.
    """

    def __init__(self, certificate: str, key: str) -> None:
        self._files = (certificate, key)
        self._seen = self._stamp()
        try:
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        except OSError as error:
            raise ConfigurationError(
                f"TLS cannot be served with {certificate} and {key}: {error}",
                next_step="correct tls_certificate and tls_key under [security]: files in PEM that belong "
                "together, the key without a passphrase, readable by this process",
            ) from error

    def renew(self, context: ssl.SSLContext) -> bool:
        """Have the server show what the files hold now; whether they had changed and are good."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        self._seen = stamp
        try:
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # half of a pair must not get into the other
            self._load(context)
        except OSError as error:
            log.warning("the renewed certificate %s is not used: %s", self._files[0], error)
            return False
        log.info("the renewed certificate %s is used", self._files[0])
        return True

    def _load(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(*self._files, password=_no_passphrase)

    def _stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Tells one content of the files from another."""
        return tuple(map(_stamp, self._files))


def _stamp(file: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _no_passphrase() -> str:
    """In place of OpenSSL, which would ask the terminal."""
    return ""
