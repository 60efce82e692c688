"""The load: a process of its own that sends one request over and over on some connections, and times the replies.

    python -m tests.bench.speed.load < plan > results

Raw sockets and no parsing before a reply's end, because it shares the machine with what it measures. Tokens are those
of the reply's own `usage`, so that a server which joins tokens in one event is counted right. Knows no server.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import uvloop

_END_OF_CHUNKS = b"0\r\n\r\n"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_USAGE = re.compile(rb'"usage":\{[^{}]*?"completion_tokens":(\d+)')
_EVENT = b"data: {"


@dataclass(frozen=True)
class Plan:
    """Which request, how often, over how many connections at once. `number` in a body becomes the request's own."""

    port: int
    key: str
    path: str
    body: Mapping[str, Any]
    connections: int
    requests: int
    """Of each connection, one after the other."""


@dataclass(frozen=True)
class Sample:
    """One reply. Seconds are from the request's first byte; `events` are those with data but for `[DONE]`."""

    tokens: int
    events: int
    bytes: int
    first_seconds: float
    total_seconds: float


class Reply(asyncio.Protocol):
    """One connection and the reply that is being read on it."""

    def __init__(self) -> None:
        self.transport: Any = None
        self._parts: list[bytes] = []
        self._tail = b""
        self._length = -1
        self._size = 0
        self._first_at = 0.0
        self._done: asyncio.Future[float] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = transport

    def connection_lost(self, _: Exception | None) -> None:
        """A connection that ends before its reply is a fault."""
        if self._done is not None and not self._done.done():
            self._done.set_exception(RuntimeError("the server closed the connection within a reply"))

    def data_received(self, data: bytes) -> None:
        """Keep it; look no further than needed to see the reply's end."""
        if not self._parts:
            self._begin(data)
        elif not self._first_at:
            self._first_at = time.perf_counter()
        self._parts.append(data)
        self._size += len(data)
        self._tail = (self._tail + data)[-len(_END_OF_CHUNKS) :]
        ended = self._tail == _END_OF_CHUNKS if self._length < 0 else self._size >= self._length
        if ended and self._done is not None and not self._done.done():
            self._done.set_result(time.perf_counter())

    def _begin(self, data: bytes) -> None:
        head, _, body = data.partition(b"\r\n\r\n")
        found = _LENGTH.search(head)
        self._length = -1 if found is None else len(head) + 4 + int(found[1])
        self._first_at = time.perf_counter() if body else 0.0

    async def ask(self, request: bytes) -> Sample:
        """Send the request, read the whole reply."""
        self._parts, self._tail, self._size, self._first_at = [], b"", 0, 0.0
        self._done = asyncio.get_running_loop().create_future()
        begun = time.perf_counter()
        self.transport.write(request)
        ended = await self._done
        text = b"".join(self._parts)
        usage = _USAGE.findall(text)
        if not text.startswith(b"HTTP/1.1 200") or not usage:
            raise RuntimeError(f"no whole reply: {text[:300]!r} ... {text[-300:]!r}")
        return Sample(int(usage[-1]), text.count(_EVENT), len(text), self._first_at - begun, ended - begun)


async def run(plan: Plan) -> list[Sample]:
    """Send everything; each connection asks again as soon as it was answered."""

    async def caller(number: int) -> list[Sample]:
        _, reply = await asyncio.get_running_loop().create_connection(Reply, "127.0.0.1", plan.port)
        # Never the same prompt twice in a window: what is cached from the request before would be measured instead.
        turns = range(number * plan.requests, (number + 1) * plan.requests)
        found = [await reply.ask(request(plan, turn)) for turn in turns]
        reply.transport.close()
        return found

    return [sample for many in await asyncio.gather(*map(caller, range(plan.connections))) for sample in many]


def request(plan: Plan, number: int) -> bytes:
    """The bytes of one request."""
    body = json.dumps(plan.body).replace("NUMBER", str(number)).encode()
    lines = [f"POST {plan.path} HTTP/1.1", "host: bench", f"authorization: Bearer {plan.key}"]
    lines += ["content-type: application/json", f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def main() -> None:
    """One window."""
    plan = Plan(**json.load(sys.stdin))
    began = time.perf_counter()
    samples = uvloop.run(run(plan))
    seconds = time.perf_counter() - began
    json.dump({"seconds": seconds, "samples": [asdict(one) for one in samples]}, sys.stdout)


if __name__ == "__main__":
    main()
