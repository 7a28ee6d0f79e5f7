"""A coordinator that stands by passes requests on to the one that leads, so that any of them can be asked.

The credential of whoever asks goes with the request, and the leader looks at it again. A request is passed
on once: a coordinator that was taken for the leader and does not lead any more says so. What could not be
brought to the leader is answered as if there were none (`coordinator-stands-by`): nothing was done.
"""

from __future__ import annotations

import logging
import math
from collections.abc import MutableMapping
from typing import Any, Final

import aiohttp
from fastapi import Response

from coordinator.process.service import CoordinatorService
from keytide.errors import RetryableError
from keytide.http.tls import trusted
from keytide.serving.gate import Application, Receive, Send
from keytide.serving.problems import of_error

log = logging.getLogger(__name__)

HEALTH: Final = "/v1/health"
"""Of a cluster without a leader one that stands by can say as much as there is to be said."""
PASSED_ON: Final = b"keytide-passed-on"
"""Header of a request that a coordinator has passed on."""
SLACK_S: Final = 2.0
"""How much longer the leader is waited for than it takes at most."""
BACK: Final = frozenset(
    {
        *("content-type", "content-disposition", "cache-control", "retry-after", "www-authenticate"),
        *("content-security-policy", "x-content-type-options", "referrer-policy"),  # of pages
    }
)
"""Headers of the answer that go on to whoever asked."""
_ON: Final = (b"authorization", b"content-type", b"accept")


class PassOn:
    """An ASGI application in front of another.

    Args:
        app: answers what is not passed on.
        service: knows who leads.
    """

    def __init__(self, app: Application, service: CoordinatorService) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/") or self._service.leads:
            await self._app(scope, receive, send)
            return
        headers, answer = dict(scope["headers"]), None
        if PASSED_ON not in headers and (url := self._service.standby.leader_url):
            body = b"" if scope["method"] in ("GET", "HEAD") else await _body(receive)
            answer = await self._asked(url, scope, headers, body)
        if answer is None and scope["path"] == HEALTH:
            await self._app(scope, receive, send)
            return
        await (answer or of_error(self._service.standby.refusal()))(scope, receive, send)

    async def _asked(
        self, url: str, scope: MutableMapping[str, Any], headers: dict[bytes, bytes], body: bytes
    ) -> Response | None:
        """The leader's answer; None when it was not reached."""
        settings = self._service.settings
        whole = url + scope["raw_path"].decode("ascii")
        if scope["query_string"]:
            whole += "?" + scope["query_string"].decode("ascii")
        on = {name.decode(): headers[name].decode("latin-1") for name in _ON if name in headers}
        limit = settings.coordinator.request_timeout_s + SLACK_S
        trust = trusted(settings.security.tls_authority) if url.startswith("https:") else True
        try:
            async with (
                aiohttp.ClientSession(
                    timeout=aiohttp.ClientTimeout(limit, ceil_threshold=math.inf)
                ) as session,
                session.request(
                    scope["method"],
                    whole,
                    data=body,
                    headers={**on, PASSED_ON.decode(): "1"},
                    ssl=trust,
                    allow_redirects=False,
                ) as response,
            ):
                content = await response.read()
                back = {name: response.headers[name] for name in BACK if name in response.headers}
                return Response(content, response.status, back)
        except aiohttp.ClientConnectorError as error:
            log.info("%s, which led, is not reached: %s", url, error)
            return None
        except (aiohttp.ClientError, TimeoutError) as error:
            silence = RetryableError(
                f"the coordinator at {url}, which leads, did not answer: {str(error) or 'it took too long'}",
                problem_type="coordinator-silent",
                next_step="look whether it was done all the same, then try again",
            )
            return of_error(silence)


async def _body(receive: Receive) -> bytes:
    parts = []
    while (message := await receive())["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    return b"".join(parts)
