"""A reader who takes nothing, over a real socket: once it is cut, the server holds nothing more for it."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.middleware.errors import ServerErrorMiddleware

from jubako.boundary import connections
from jubako.boundary.application import Application
from jubako.boundary.surfaces import SurfaceGuard
from jubako.errors import InternalError
from jubako.sections import SurfaceSettings
from jubako.vocabulary import Call, Stream
from tests.caller import ASKED, CHAT, KEY, SECONDS, ready_pipeline
from tests.scripted_engine import Script, ScriptedEngine, event, says
from tests.unit.test_sse import STRICT

PART = "x" * 2**16
ORIGIN = "https://console.example"


async def endless(_: Call) -> Stream:
    """A stream that no kernel's buffers hold."""

    async def events() -> AsyncGenerator[bytes]:
        while True:
            yield event(PART)

    return Stream(events())


async def broken(_: Call) -> Stream:
    """A stream whose error comes when its reader has stopped, so that nobody takes the error either."""

    async def events() -> AsyncGenerator[bytes]:
        for _ in range(400):
            yield event(PART)
        raise InternalError("a fault")

    return Stream(events())


@asynccontextmanager
async def serving(engine: ScriptedEngine) -> AsyncIterator[tuple[int, set[Any]]]:
    """The pipeline behind uvicorn and all that stands around it: its port, and the connections it has."""
    from bentoml._internal.server.http.traffic import TimeoutMiddleware

    application = Application(ready_pipeline(engine, stream=STRICT))

    async def nobody(_: str | None) -> Any:
        raise InternalError("no surface is asked for")

    surfaces = SurfaceSettings(metrics="closed", documentation="closed", cors_origins=[ORIGIN])
    guard = SurfaceGuard(application, settings=surfaces, authenticate=nobody, scrape=nobody)

    # As BentoML builds it, but for what does nothing here.
    app = ServerErrorMiddleware(TimeoutMiddleware(guard, timeout=600))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", http="httptools", loop="uvloop"))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1], server.server_state.connections
    finally:
        server.should_exit = server.force_exit = True
        await running


def ask(port: int, body: dict[str, Any]) -> socket.socket:
    """A connection that has sent a request and will read nothing."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    content = json.dumps(body).encode()
    lines = [f"POST {CHAT} HTTP/1.1", "host: test", f"authorization: Bearer {KEY}", f"origin: {ORIGIN}"]
    lines += ["content-type: application/json", f"content-length: {len(content)}", "", ""]
    connection.sendall("\r\n".join(lines).encode() + content)
    return connection


@pytest.mark.parametrize(
    ("script", "stream", "kernel"),
    [
        (endless, True, False),
        (broken, True, False),
        (endless, True, True),
        (says({"text": "x" * 2**24}), False, True),
    ],
    ids=["stream", "error", "stream that the kernel cuts", "document that is all written"],
)
async def test_a_reader_who_takes_nothing_is_no_connection_any_more(
    script: Script, *, stream: bool, kernel: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it stays, and what was written to it is not taken; and it is no error of ours."""
    if not kernel:
        monkeypatch.setattr(connections, "bound", lambda *_: None)
    engine = ScriptedEngine(script)
    async with serving(engine) as (port, open_connections):
        with caplog.at_level(logging.ERROR, "uvicorn"), await asyncio.to_thread(ask, port, {**ASKED, "stream": stream}):
            async with asyncio.timeout(6 * SECONDS):
                await engine.asked.wait()
                while open_connections:
                    await asyncio.sleep(0.01)
    assert not [one for one in caplog.records if one.name.startswith("uvicorn")]
