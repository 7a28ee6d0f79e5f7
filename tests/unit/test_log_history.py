"""Which places are on a log, and where histories part; and kafka-python's names for librdkafka's settings."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keytide.kafka.kafka_python import python_client
from keytide.model.log_history import LogHistory, PartitionHistory
from keytide.model.timestamp import Place
from keytide.settings.settings import load_settings

CHAIN = PartitionHistory(low=10, high=100, leader_epoch=7, branches=((1, 40), (4, 60), (7, 100)))


@pytest.mark.parametrize(
    ("place", "parting"),
    [
        (Place(0), None),
        (Place(0, 99), None),
        (Place(100), None),  # unknown epoch: the offset alone
        (Place(101), Place(100, 1)),
        (Place(40, 1), None),
        (Place(60, 4), None),
        (Place(100, 7), None),
        (Place(8, 0), None),  # expired: nothing can be said against it
        (Place(11, 0), Place(10, 1)),  # what lies there is of another epoch
        (Place(41, 1), Place(40, 4)),  # the branch was cut
        (Place(90, 4), Place(60, 7)),
        (Place(55, 2), Place(40, 4)),  # an epoch that the log never had
        (Place(30, 2), Place(29, 4)),
        (Place(95, 9), Place(94, 10)),  # a later epoch than the leader's
        (Place(130, 7), Place(100, 8)),
    ],
)
def test_places_on_a_log(place: Place, parting: Place | None) -> None:
    assert CHAIN.parting(place) == parting


def test_a_missing_partition_is_an_empty_log() -> None:
    history = LogHistory("id", {0: CHAIN})
    assert history.diverging({0: Place(100, 7), 1: Place(0), 2: Place(5, 0)}) == {2: Place(0, 1)}


@given(st.data())
def test_against_logs_record_by_record(data: st.DataObject) -> None:
    """Logs as lists of epochs; a new leader has a prefix of any log that was, and appends. A place is on the
    newest log just when that log agrees with the place's own log on everything below it; `parting` is never
    below where they part, and exactly there when the log has something of the place's epoch."""
    logs: list[list[int]] = [[]]
    for epoch in range(data.draw(st.integers(1, 6))):
        old = data.draw(st.sampled_from(logs))
        kept = old[: data.draw(st.integers(0, len(old)))]
        logs.append(kept + [epoch] * data.draw(st.integers(0, 4)))
    newest, leader = logs[-1], len(logs) - 2
    ends = {epoch: at + 1 for at, epoch in enumerate(newest)}
    ends.setdefault(leader, len(newest))
    low = data.draw(st.integers(0, len(newest)))
    branches = tuple((epoch, end) for epoch, end in sorted(ends.items()) if end > low or epoch == leader)
    history = PartitionHistory(low, len(newest), leader, branches)
    for log in logs:
        for offset in range(1, len(log) + 1):
            common = next(
                (at for at, (a, b) in enumerate(zip(log, newest, strict=False)) if a != b),
                min(len(log), len(newest)),
            )
            place = Place(offset, log[offset - 1])
            parting = history.parting(place)
            if parting is None:
                assert common >= offset or offset <= low
                continue
            assert common < offset
            assert common <= parting.offset < offset or parting.offset == low
            assert parting.epoch > place.epoch
            if place.epoch in newest and parting.offset > low:
                assert parting.offset == common


def test_names_of_the_other_client(tmp_path: Path) -> None:
    def client(**kafka: object) -> dict[str, object] | None:
        return python_client(load_settings(kafka={"bootstrap": "a:1,b:2", **kafka}))

    assert client() == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "PLAINTEXT",
        "client_id": "keytide",
    }
    scram = client(
        **{
            "security.protocol": "sasl_plaintext",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "u",
            "sasl.password": "p",
        }
    )
    assert scram is not None
    assert scram["security_protocol"] == "SASL_PLAINTEXT"
    assert scram["sasl_mechanism"] == "SCRAM-SHA-512"
    assert (scram["sasl_plain_username"], scram["sasl_plain_password"]) == ("u", "p")
    tls = client(
        **{"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "none"},
    )
    assert tls is not None
    context = tls["ssl_context"]
    assert isinstance(context, ssl.SSLContext)
    assert not context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED
    unchecked = client(**{"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"})
    assert unchecked is not None
    assert isinstance(unchecked["ssl_context"], ssl.SSLContext)
    assert unchecked["ssl_context"].verify_mode == ssl.CERT_NONE
    # What it has no words for leaves the check of offsets.
    assert client(**{"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}) is None
    assert client(**{"security.protocol": "SSL", "ssl.keystore.location": str(tmp_path / "k.p12")}) is None
    with pytest.raises(OSError, match="No such file"):
        client(**{"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "missing.pem")})
