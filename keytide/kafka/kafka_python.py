"""librdkafka's settings in kafka-python's words: for the few requests that librdkafka cannot send.

`[kafka]` in the settings is written for librdkafka and passes through to it; here its security settings are
translated. What kafka-python cannot do (OAUTHBEARER without a program of the user's, PKCS12 key stores) is
said once, in the log.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from typing import Any, Final

from keytide.settings.settings import Settings

log = logging.getLogger(__name__)
logging.getLogger("kafka").setLevel(logging.CRITICAL)  # what ends a call is told by who made it

_PLAIN_MECHANISMS: Final = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"})
_told: set[str] = set()


def python_client(settings: Settings) -> dict[str, Any] | None:
    """kafka-python's configuration for the cluster that `[kafka]` names; None when it has no words for it.

    Raises:
        OSError: a certificate or key file cannot be read.
    """
    said = {name: str(value) for name, value in (settings.kafka.model_extra or {}).items()}
    protocol = said.get("security.protocol", "plaintext").upper()
    config: dict[str, Any] = {
        "bootstrap_servers": settings.kafka.bootstrap.split(","),
        "security_protocol": protocol,
        "client_id": said.get("client.id", "keytide"),
    }
    if protocol.startswith("SASL"):
        mechanism = (said.get("sasl.mechanisms") or said.get("sasl.mechanism") or "GSSAPI").upper()
        config["sasl_mechanism"] = mechanism
        if mechanism in _PLAIN_MECHANISMS:
            config["sasl_plain_username"] = said.get("sasl.username", "")
            config["sasl_plain_password"] = said.get("sasl.password", "")
        elif mechanism == "GSSAPI":
            config["sasl_kerberos_service_name"] = said.get("sasl.kerberos.service.name", "kafka")
        else:
            _tell_offsets_only(f"sasl.mechanism={mechanism}")
            return None
    if protocol.endswith("SSL"):
        stores = {"ssl.keystore.location", "ssl.certificate.pem", "ssl.key.pem", "ssl.engine.location"}
        if unknown := sorted(stores & said.keys()):
            _tell_offsets_only(", ".join(unknown))
            return None
        config["ssl_context"] = _tls(said)
    return config


def _tell_offsets_only(what: str) -> None:
    if what not in _told:
        _told.add(what)
        log.error(
            "leader epochs cannot be asked for with %s: only offsets past the end of a log are noticed as "
            "lost; use PLAIN, SCRAM or GSSAPI, and keys in PEM files",
            what,
        )


def _tls(said: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority = said.get("ssl.ca.location", "probe")
    if "ssl.ca.pem" in said:
        context = ssl.create_default_context(cadata=said["ssl.ca.pem"])
    elif authority != "probe":
        context = ssl.create_default_context(cafile=authority)
    if "ssl.certificate.location" in said:
        context.load_cert_chain(
            said["ssl.certificate.location"], said.get("ssl.key.location"), said.get("ssl.key.password")
        )
    if "ssl.crl.location" in said:
        context.load_verify_locations(cafile=said["ssl.crl.location"])
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if said.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if said.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
