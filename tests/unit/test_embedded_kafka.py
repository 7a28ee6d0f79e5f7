"""How the embedded broker's JVM is started."""

from __future__ import annotations

import pytest

from deploy.kafka import jvm_options

NAME = "KAFKA_JVM_PERFORMANCE_OPTS"


def test_the_jvm_is_made_for_short_pauses_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    usual = jvm_options()
    assert "-XX:+UseG1GC" in usual
    monkeypatch.setenv(NAME, "-XX:+UseSerialGC '-XX:OnError=kill %p'")
    told = jvm_options()
    assert told[-2:] == ["-XX:+UseSerialGC", "-XX:OnError=kill %p"]
    assert "-XX:+UseG1GC" not in told
    assert "-Xmx1g" in usual
    assert "-Xmx1g" in told, "only what is about speed is replaced"
