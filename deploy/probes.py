"""Whether a Kafka, or a process that was started, answers."""

from __future__ import annotations

import ssl
import urllib.request

from confluent_kafka import KafkaException

from keytide.cli.admin import CERTIFICATE_STEP
from keytide.errors import CallerError
from keytide.http.tls import trusted
from keytide.kafka.clients import AdminClient
from keytide.settings.settings import load_settings

_KAFKA_LIMIT_S = 10.0


def see_kafka(bootstrap: str) -> None:
    """Find a Kafka that others run, before parts that need it are started.

    Raises:
        CallerError: it does not answer.
    """
    client = {**load_settings().kafka.client(), "bootstrap.servers": bootstrap, "log_level": 0}
    try:
        with AdminClient(client) as admin:
            admin.list_topics(timeout=_KAFKA_LIMIT_S)
    except KafkaException as error:
        raise CallerError(
            f"no Kafka answers at {bootstrap} within {_KAFKA_LIMIT_S:.0f} s: {error.args[0]}",
            problem_type="kafka-unavailable",
            next_step="start it, correct the address or what [kafka] says, or leave --kafka out",
        ) from error


def answers(url: str, authority: str) -> bool:
    """Whether a part says well of itself at `url`: 200.

    Raises:
        CallerError: this machine does not trust its certificate, and neither would the other parts.
    """
    try:
        context = trusted(authority) if url.startswith("https:") else None
        with urllib.request.urlopen(url, timeout=2, context=context) as response:
            return bool(response.status == 200)
    except OSError as error:
        if isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError):
            raise CallerError(
                f"the certificate shown at {url} is not trusted: {error}", next_step=CERTIFICATE_STEP
            ) from error
        return False
