"""Settings of the HTTP servers: coordinator, nodes, gateways. (`keytide.settings.settings` has the others,
and how they are read.)"""

from __future__ import annotations

from typing import Final

from pydantic import Field

from keytide.settings.scans import Section

MAX_BODY_BYTES: Final = 1 << 20
"""As a cluster has it that says nothing else."""


class HttpSettings(Section):
    max_body_bytes: int = Field(
        MAX_BODY_BYTES,
        ge=1,
        description="largest request body: far above any key or statement, far below what hurts",
    )
    max_message_bytes: int = Field(
        64 << 20,
        ge=1,
        description="largest request of another part of the cluster: a place to go on from for each of a "
        "thousand slices, with long keys",
    )
    max_head_bytes: int = Field(
        256 << 10,
        ge=1,
        description="largest head of a request, about: a thousand spans in an address fit; with each piece "
        "of a longer one the server would copy all that came before",
    )
    head_timeout_s: float = Field(
        10.0,
        gt=0,
        description="how long a connection may take for the head of a request, from its first byte or, when "
        "it is new, from its beginning: half a head costs the server as much as a whole one",
    )
    body_timeout_s: float = Field(
        30.0, gt=0, description="how long a request's body may take, refused ones too: they are thrown away"
    )
    idle_timeout_s: int = Field(
        75,
        ge=1,
        description="how long a connection is kept between two requests: a reader that asks now and then "
        "need not connect anew",
    )
    max_connections: int = Field(
        2_000,
        ge=1,
        description="open connections of one server; beyond it the one goes that has waited longest for its "
        "request or, when all have come, for another one: each takes a file handle and some kilobytes",
    )
    max_waiting: int = Field(
        256,
        ge=1,
        description="requests that wait for their turn in one server; beyond it who has the most of them "
        "waiting is refused some (503, overloaded): half a millisecond each, so that no answer comes late by "
        "more than a fraction of a second",
    )


class SecuritySettings(Section):
    tokens: dict[str, list[str]] = Field(
        default_factory=dict, description="API token -> scopes (read, admin)"
    )
    origins: list[str] = Field(
        default_factory=list,
        description="origins (`https://keytide.example`) whose pages may do more than read, beside "
        "the server's own: needed behind a proxy that changes the header Host",
    )
    tls_certificate: str = Field(
        default="", description="certificate (PEM) of the HTTP servers; empty serves plain HTTP"
    )
    tls_key: str = Field(default="", description="the key of `tls_certificate` (PEM)")
    tls_authority: str = Field(
        default="",
        description="certificates (PEM) of who signed those of the cluster, the only ones that its parts and "
        "the command trust then; empty for what the machine trusts",
    )
