"""A caller without a network: one ASGI request and all that is sent in reply, each side at the test's pace.

It knows ASGI and the pipeline's parts; it knows nothing of a model.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import Any

from jubako.boundary.application import Application
from jubako.engine.port import Engine
from jubako.gate.authentication import KeyAuthenticator
from jubako.life import Life
from jubako.pipeline import Pipeline
from jubako.settings import LimitSettings, StreamSettings

KEY = "a-key-for-tests-only"
CHAT = "/v1/chat/completions"
LIMITS = LimitSettings(body_bytes=2048, body_seconds=0.2, reply_seconds=5)
STREAM = StreamSettings(keep_alive_seconds=60, stalled_reader_seconds=60)
SECONDS = 10.0
"""No reply of a scripted engine takes this long."""


def ready_pipeline(
    engine: Engine, *, limits: LimitSettings = LIMITS, stream: StreamSettings = STREAM, life: Life | None = None
) -> Pipeline:
    """A pipeline around `engine` that takes requests; a `life` that is given stays in its phase."""
    if life is None:
        life = Life()
        life.become_ready()
    return Pipeline(authenticator=KeyAuthenticator(KEY), life=life, engine=engine, limits=limits, stream=stream)


class Caller:
    """One request. The body is sent as a whole unless the test sends it, and whatever is sent in reply is taken."""

    def __init__(
        self,
        body: Any = None,
        *,
        path: str = CHAT,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        body_follows: bool = False,
    ) -> None:
        given = {"authorization": f"Bearer {KEY}", "content-type": "application/json"} | dict(headers or {})
        self.scope: MutableMapping[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items()],
        }
        self.inbox: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self.sent: list[MutableMapping[str, Any]] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self._gone = False
        self._moved = asyncio.Event()
        if not body_follows:
            self.send_body(body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode())

    def send_body(self, part: bytes, *, more: bool = False) -> None:
        """Send one part of the body."""
        self.inbox.put_nowait({"type": "http.request", "body": part, "more_body": more})

    def leave(self) -> None:
        """Close the connection."""
        self._gone = True
        self.reads.set()
        self.inbox.put_nowait({"type": "http.disconnect"})

    async def call(self, pipeline: Pipeline) -> Caller:
        """Make the request and wait for its end."""
        async with asyncio.timeout(SECONDS):
            await Application(pipeline)(self.scope, self._receive, self._send)
        return self

    def begin(self, pipeline: Pipeline) -> asyncio.Task[Caller]:
        """Make the request without waiting."""
        return asyncio.create_task(self.call(pipeline))

    async def _receive(self) -> MutableMapping[str, Any]:
        return await self.inbox.get()

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        await self.reads.wait()
        if not self._gone:
            self.sent.append(message)
            self._moved.set()

    async def received(self, text: bytes) -> None:
        """Wait until `text` is in the reply."""
        async with asyncio.timeout(SECONDS):
            while text not in self.body:
                self._moved.clear()
                await self._moved.wait()

    @property
    def status(self) -> int:
        """The status of the reply; zero if there is none."""
        return int(self.sent[0]["status"]) if self.sent else 0

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the reply."""
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        """The body of the reply so far."""
        return b"".join(message["body"] for message in self.sent if message["type"] == "http.response.body")

    @property
    def ended(self) -> bool:
        """Whether the reply is whole."""
        return bool(self.sent) and self.sent[-1].get("more_body") is False

    @property
    def error(self) -> dict[str, Any]:
        """The error object: of the whole reply, or of the stream's last event."""
        text = self.body
        if text.startswith((b"data:", b":")):
            text = text.rstrip().rpartition(b"\n\n")[2].removeprefix(b"data: ")
        error: dict[str, Any] = json.loads(text)["error"]
        return error


async def ended(task: asyncio.Task[Any]) -> None:
    """Wait for a task, however it ends."""
    with suppress(asyncio.CancelledError):
        await asyncio.wait_for(task, SECONDS)
