"""Authorities and certificates for tests, made by the `openssl` command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_NAMES = "subjectAltName=IP:127.0.0.1,DNS:localhost"


@dataclass(frozen=True)
class Authority:
    """One that signs certificates, in a folder of its own."""

    folder: Path

    @classmethod
    def made(cls, folder: Path) -> Authority:
        folder.mkdir(parents=True)
        made = cls(folder)
        made._run("req", "-x509", *_KEY, "-days", "30", "-subj", "/CN=an authority", "-keyout", "ca.key",
                  "-out", "ca.crt")  # fmt: skip
        return made

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.crt"

    def sign(self, certificate: Path, key: Path, *, expired: bool = False) -> None:
        """Put a new certificate for this machine, and its key, where a server reads them."""
        (self.folder / "names").write_text(_NAMES)
        self._run("req", *_KEY, "-subj", "/CN=a server", "-keyout", "new.key", "-out", "new.csr")
        # OpenSSL before 3.4 cannot name a day: one that ends when it begins has expired a second later
        days = ["-days", "0"] if expired else ["-days", "30"]
        self._run("x509", "-req", "-in", "new.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                  *days, "-extfile", "names", "-out", "new.crt")  # fmt: skip
        (self.folder / "new.key").replace(key)
        (self.folder / "new.crt").replace(certificate)

    def _run(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
