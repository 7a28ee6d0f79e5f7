"""Fuzzes what nodes, the coordinator and Spark's drivers ask a node (`/internal/v1/*`).

Messages are made from well-formed ones of every kind: members changed to what is hostile, missing, too many;
spans in any shape; arguments of tasks that are none; bytes cut off, bytes turned. They carry the credential
of the cluster, so that nothing stands between them and the slices. Whatever they are, the node answers them
(no 500), no slice is called damaged, its content and its checksums stay what they were, and a scan answers
the same.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Self

import httpx
import msgspec
from prometheus_client import CollectorRegistry

from indexer.copying.messages import COPY_PATH
from indexer.scan.aggregate import task as aggregate_task
from indexer.scan.aggregate.request import AggregationPlan, Function
from indexer.scan.aggregate.task import Arguments, encode_plan
from indexer.scan.gather.peers import LEASE_PATH, READ_PATH
from indexer.scan.stream import block as streaming_block
from indexer.scan.tail import changes as tail_changes
from indexer.serve.api import create_app
from indexer.validation import versions
from keytide.errors import InvariantViolationError
from keytide.settings.settings import load_settings
from keytide.wire.digests import VERIFY_PATH
from keytide.wire.index_lists import LISTS_PATH
from tests.live_node import BUILD, NUMBER, LiveNode
from tests.unit.scan_world import of_the_cluster

_encode = msgspec.msgpack.encode
_ANSWERS = {200, 413, 422, 503}
INDEXES = ("by_city-1", "one_n-1", "by_place-1")
SCANS = tuple(f"/v1/indexes/{name}/scan" for name in ("by_city", "one_n", "by_place"))
_DEEP = b'{"args":[' * 5_000
_FILTERS = (b"", b"", b"", b"{}", b"[]", b"null", b"1", b"{", _DEEP, b"\xff")


class InternalFuzz:
    """One seed's messages. Use within `with`."""

    def __init__(self, node: LiveNode, seed: int) -> None:
        self.answers: Counter[str] = Counter()
        self._node = node
        self._seed = seed
        self._random = random.Random(seed)
        self._bugs: list[InvariantViolationError] = []
        self._contents = node.contents()
        keys = [key for rows in self._contents.values() for key, _ in rows]
        self._keys = self._random.sample(keys, 12)
        self._app = create_app(node.view, load_settings(), CollectorRegistry(), self._bugs.append)
        self._lifespan = self._app.router.lifespan_context(self._app)
        self._loop = asyncio.new_event_loop()
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
        self._http = httpx.AsyncClient(base_url="http://127.0.0.1", transport=transport)

    def __enter__(self) -> Self:
        self._loop.run_until_complete(self._lifespan.__aenter__())
        self._scans = [self._scan(path) for path in SCANS]
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._lifespan.__aexit__(None, None, None))
        self._loop.run_until_complete(self._http.aclose())
        self._loop.close()

    def run(self, messages: int) -> None:
        """Ask so many, and then see that nothing has changed."""
        for at in range(messages):
            path, body = self.message()
            status, text = self.ask(path, body)
            self.answers[f"{path.rpartition('/')[2]} {status}"] += 1
            story = f"seed {self._seed}, message {at}, {path} {body[:300]!r}: {status} {text[:300]!r}"
            assert status in _ANSWERS, story
            damage = {key: ring.damage for key, ring in self._node.rings.items() if ring.damage}
            assert not damage, f"{damage}: {story}"
            assert not self._bugs, f"{self._bugs}: {story}"
        self._node.check()
        assert self._node.contents() == self._contents, f"seed {self._seed}: other content"
        assert [self._scan(path) for path in SCANS] == self._scans, f"seed {self._seed}: other answers"

    def ask(self, path: str, body: bytes) -> tuple[int, bytes]:
        """A node's answer to a message: status and body."""
        post = self._http.post(path, content=body, headers=of_the_cluster())
        answer = self._loop.run_until_complete(post)
        return answer.status_code, answer.content

    def _scan(self, path: str) -> Any:
        answer = self._loop.run_until_complete(self._http.post(path, json={"limit": 1_000}))
        assert answer.status_code == 200, answer.text
        return answer.json()["rows"]

    # --- messages -------------------------------------------------------------------------------------

    def message(self) -> tuple[str, bytes]:
        """A path, and what is sent to it."""
        draw = self._random
        kind = draw.choice(
            (self._read, self._read, self._read, self._lease, self._verify, self._list, self._copy)
        )
        path, message = kind()
        if draw.random() < 0.5:
            self._spoil(message)
        body = _encode(message)
        chance = draw.random()
        if chance < 0.05:
            body = body[: draw.randrange(len(body))]
        elif chance < 0.1:
            at = draw.randrange(len(body))
            body = body[:at] + draw.randbytes(draw.randint(1, 4)) + body[at + 1 :]
        return path, body

    def _read(self) -> tuple[str, Any]:
        draw = self._random
        slices = self._slices()
        task, body = draw.choice((self._no_task, self._no_task, self._aggregate, self._block, self._others))()
        return READ_PATH, [
            self._index(),
            draw.choice((NUMBER, NUMBER, -1, 4)),
            0,
            slices,
            self._spans(),
            [self._key() for _ in slices],
            draw.random() < 0.5,
            draw.choice((0, 1, 5, 1_000, 100_000)),
            draw.choice((0, 0, 5_000)),
            draw.random() < 0.3,
            draw.random() < 0.2,
            draw.choice(_FILTERS),
            draw.random() < 0.3,
            draw.choice((0, 0, 3)),
            draw.random() < 0.2,
            draw.choice(("", "", "", "h1")),
            task,
            body,
        ]

    def _lease(self) -> tuple[str, Any]:
        draw = self._random
        hold = draw.choice(("", "h1", "h2"))
        lease_ms = draw.choice((0, 1_000, 10**8))
        return LEASE_PATH, [self._index(), NUMBER, 0, self._slices(), lease_ms, draw.random() < 0.5, hold]

    def _verify(self) -> tuple[str, Any]:
        draw = self._random
        index, number = self._index(), draw.choice((0, 1))
        stage = draw.choice(("forward", "back"))
        bits = draw.choice((0, 2, 16))
        floors = draw.choice(({}, {0: 30}, {0xFFFFFFFF: 1 << 62}))
        after = draw.choice((b"", self._key(), b"u10"))
        limit = draw.choice((0, 7, 10**6))
        match draw.choice(("pin", "digest", "rows", "built")):
            case "pin":
                lease_ms = draw.choice((0, 1_000))
                return VERIFY_PATH, [
                    "pin",
                    index,
                    self._slices(),
                    draw.choice((-1, NUMBER)),
                    0,
                    "v1",
                    lease_ms,
                ]
            case "digest":
                return VERIFY_PATH, ["digest", index, number, NUMBER, 0, stage, bits, floors, after, limit]
            case "built":
                build = draw.choice((BUILD, BUILD, "b2"))
                return VERIFY_PATH, [
                    "built",
                    index,
                    number,
                    build,
                    draw.choice((0, 0, 1)),
                    stage,
                    after,
                    limit,
                ]
            case _:
                buckets = sorted(draw.sample(range(1 << bits), min(2, 1 << bits)))
                ids = [b"u01", b"u17"]
                return VERIFY_PATH, [
                    *("rows", index, number, NUMBER, 0, stage, bits, buckets, ids, after, limit),
                    draw.choice((0, 1_000_000)),
                ]

    def _list(self) -> tuple[str, Any]:
        draw = self._random
        message: dict[str, Any] = {
            "what": draw.choice(("skipped", "violations", "load", "map")),
            "index": self._index(),
            "slices": self._slices(),
            "limit": draw.choice((0, 5, 10**6)),
            "reasons": draw.random() < 0.5,
        }
        if draw.random() < 0.5:
            message["after"] = [0, draw.choice((0, 10, (1 << 63) - 1))]
            message["after_key"] = self._key()
        return LISTS_PATH, message

    def _copy(self) -> tuple[str, Any]:
        draw = self._random
        copy, index, number = draw.choice(
            (("c1", INDEXES[0], 0), ("c2", INDEXES[1], 1), ("c3", INDEXES[1], 1))
        )
        return COPY_PATH, {
            "copy": draw.choice((copy, copy, copy, "c9", "")),
            "index": draw.choice((index, index, self._index())),
            "slice": draw.choice((number, number, number, 7)),
            "generation": draw.choice(("", "", "", "g", "x" * 300)),
            "table": draw.choice(("forward", "long", "back", "skips", "meta")),
            "after": self._key(),
        }

    # --- members --------------------------------------------------------------------------------------

    def _index(self) -> str:
        return self._random.choice((*INDEXES, *INDEXES, *INDEXES, "gone-1", ""))

    def _slices(self) -> list[Any]:
        return self._random.choice(([0], [1], [0, 1], [1, 0], [], [0, 0], [7]))

    def _key(self) -> bytes:
        draw = self._random
        whole = draw.choice(self._keys)
        return draw.choice(
            (b"", b"", whole, whole[: draw.randrange(len(whole))], draw.randbytes(5), b"x" * 2_000)
        )

    def _spans(self) -> list[Any]:
        draw = self._random
        if draw.random() < 0.3:
            return [[b"", None]]
        ends = sorted(self._key() for _ in range(2 * draw.randint(0, 3)))
        spans: list[Any] = [[low, high] for low, high in zip(ends[::2], ends[1::2], strict=True)]
        if draw.random() < 0.3:
            spans += [[self._key(), draw.choice((None, self._key()))]]
        return spans

    def _no_task(self) -> tuple[str, bytes]:
        return "", b""

    def _aggregate(self) -> tuple[str, bytes]:
        draw = self._random
        plan = draw.choice(
            (
                encode_plan(AggregationPlan((), (), (Function("count", -1, False, "count"),))),
                b'{"groups":[],"operands":[],"functions":[{"function":"sum","operand":9}]}',
                b"{}",
                _DEEP,
            )
        )
        numbers = (-1, 0, 1, 1_000)
        arguments = Arguments(
            plan,
            draw.random() < 0.5,
            draw.choice((None, *numbers)),
            draw.choice(numbers),
            draw.choice(numbers),
            {0: self._key(), 1: self._key()},
        )
        return aggregate_task.TASK, _encode(arguments)

    def _block(self) -> tuple[str, bytes]:
        draw = self._random
        return streaming_block.TASK, _encode([draw.choice((-1, 0, 1_000)), draw.random() < 0.5])

    def _others(self) -> tuple[str, bytes]:
        draw = self._random
        changes = [draw.choice((NUMBER, 1, -5)), draw.choice((0, 3)), draw.choice((-1, 10_000)), True, "both"]
        task, body = draw.choice(
            (
                (tail_changes.TASK, _encode(changes)),
                (versions.TASK, _encode({0: [b"u01", b"u17"], 1: [self._key()]})),
                ("no-such-task", b""),
                (versions.TASK, b"\xc1"),
            )
        )
        return task, body

    def _spoil(self, message: Any) -> None:
        """Make a member, or a member of a member, something else; or add or take one."""
        draw = self._random
        while isinstance(message, list | dict) and message:
            at = draw.choice(list(message) if isinstance(message, dict) else range(len(message)))
            if isinstance(message[at], list | dict) and message[at] and draw.random() < 0.5:
                message = message[at]
                continue
            if isinstance(message, list) and draw.random() < 0.15:
                del message[at]
            else:
                message[at] = draw.choice(_HOSTILE)()
            return


_HOSTILE: tuple[Callable[[], Any], ...] = (
    lambda: None,
    lambda: True,
    lambda: -1,
    lambda: 0,
    lambda: 1 << 31,
    lambda: (1 << 64) - 1,
    lambda: -(1 << 63),
    lambda: 1.5,
    lambda: float("nan"),
    lambda: "",
    lambda: "pages",
    lambda: "x" * 5_000,
    lambda: b"",
    lambda: b"\xff" * 600,
    list,
    lambda: [[b"", None], [b"", None]],
    lambda: [[b"b", b"a"]],
    lambda: list(range(1_000)),
    dict,
    lambda: {"a": 1},
)
