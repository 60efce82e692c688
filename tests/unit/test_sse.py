"""The stream contract, with an engine that is slow and a reader who is slower."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import pytest

from jubako.boundary import sse
from jubako.boundary.exchange import Exchange
from jubako.errors import InternalError, InvalidRequest, Unavailable
from jubako.sections import StreamSettings
from jubako.vocabulary import Call, Stream
from tests.caller import ASKED, Caller, ready_pipeline
from tests.scripted_engine import DONE, Script, ScriptedEngine, event, hangs, raises, streams

STREAMED = {**ASKED, "stream": True}
HASTY = StreamSettings(keep_alive_seconds=0.02, stalled_reader_seconds=60)
STRICT = StreamSettings(keep_alive_seconds=60, stalled_reader_seconds=0.05)
COMMENT = b": keep-alive\n\n"


async def test_a_stream_is_its_events_and_the_end() -> None:
    """Nothing is added, joined or left out; no abort follows a whole reply."""
    engine = ScriptedEngine(streams(event("a"), event("b"), DONE))
    caller = await Caller(STREAMED).call(ready_pipeline(engine))
    assert caller.status == 200
    assert caller.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert caller.headers["cache-control"] == "no-cache"
    assert caller.body == event("a") + event("b") + DONE
    assert caller.ended
    assert engine.aborted == []


async def test_a_silent_engine_is_covered_by_comments_before_the_first_event() -> None:
    """The status line and a comment go out; the events follow as if nothing were."""
    caller = await Caller(STREAMED).call(ready_pipeline(ScriptedEngine(streams(0.1, event("a"), DONE)), stream=HASTY))
    assert caller.status == 200
    assert caller.body.startswith(COMMENT)
    assert caller.body.replace(COMMENT, b"") == event("a") + DONE


async def test_a_silent_engine_is_covered_by_comments_between_events() -> None:
    """A comment stands between whole events, never inside one."""
    script = streams(event("a"), 0.1, event("b"), DONE)
    caller = await Caller(STREAMED).call(ready_pipeline(ScriptedEngine(script), stream=HASTY))
    assert caller.body.startswith(event("a") + COMMENT)
    assert caller.body.replace(COMMENT, b"") == event("a") + event("b") + DONE


async def test_an_engine_that_renders_long_is_covered_too() -> None:
    """Comments do not wait for the engine's stream to exist."""
    caller = Caller(STREAMED)
    task = caller.begin(ready_pipeline(ScriptedEngine(hangs()), stream=HASTY))
    await caller.received(COMMENT)
    caller.leave()
    await task
    assert set(caller.body.split(b"\n\n")) == {b": keep-alive", b""}


@pytest.mark.parametrize("script", [raises(InvalidRequest("no", param="n")), streams(InvalidRequest("no", param="n"))])
async def test_an_error_before_the_first_event_keeps_its_status(script: Script) -> None:
    """Whether the engine refuses at once or at its first step, the caller gets a status and no stream."""
    caller = await Caller(STREAMED).call(ready_pipeline(ScriptedEngine(script)))
    assert caller.status == 400
    assert caller.headers["content-type"] == "application/json"
    assert caller.error == {"message": "no", "type": "invalid_request_error", "param": "n", "code": "invalid_value"}


async def test_an_error_after_a_comment_is_an_event() -> None:
    """Once the status is sent, an error can only be told in the stream."""
    caller = await Caller(STREAMED).call(ready_pipeline(ScriptedEngine(streams(0.1, Unavailable("no"))), stream=HASTY))
    assert caller.status == 200
    assert caller.error["code"] == "not_ready"
    assert DONE not in caller.body


@pytest.mark.parametrize("error", [InternalError("no"), ValueError("secret")])
async def test_an_error_after_an_event_is_the_last_event(error: Exception) -> None:
    """One typed error event, no end marker, and the reply is closed in order."""
    engine = ScriptedEngine(streams(event("a"), error))
    caller = await Caller(STREAMED).call(ready_pipeline(engine))
    assert caller.body.startswith(event("a") + b'data: {"error"')
    assert caller.body.count(b"data:") == 2
    assert caller.error["type"] == "server_error"
    assert DONE not in caller.body
    assert b"secret" not in caller.body
    assert caller.ended
    assert engine.aborted == [engine.calls[0].request_id]


async def test_a_reader_who_takes_nothing_is_cut() -> None:
    """The engine is told to stop; the request ends."""
    engine = ScriptedEngine(streams(event("a"), event("b"), DONE))
    caller = Caller(STREAMED)
    caller.reads.clear()
    await caller.call(ready_pipeline(engine, stream=STRICT))
    assert engine.aborted == [engine.calls[0].request_id]


async def test_a_reader_who_takes_no_comment_is_cut() -> None:
    """A stream that hangs in a comment hangs as much as in an event."""
    engine = ScriptedEngine(streams(event("a"), asyncio.Event()))
    caller = Caller(STREAMED)
    pipeline = ready_pipeline(engine, stream=StreamSettings(keep_alive_seconds=0.05, stalled_reader_seconds=0.1))
    task = caller.begin(pipeline)
    await caller.received(event("a"))
    caller.reads.clear()
    await task
    assert engine.aborted == [engine.calls[0].request_id]


async def test_a_reader_who_does_not_take_the_end_is_cut() -> None:
    """The last bytes are waited for as long as any others and no longer."""
    caller = Caller(STREAMED)

    async def send(message: object) -> None:
        await original(message)  # type: ignore[arg-type]
        if DONE in caller.body:
            caller.reads.clear()

    original, caller._send = caller._send, send  # type: ignore[method-assign]
    pipeline = ready_pipeline(ScriptedEngine(streams(event("a"), DONE)), stream=STRICT)
    await caller.call(pipeline)
    assert pipeline.life.in_flight == 0
    assert not caller.ended


async def test_a_reader_who_does_not_take_the_error_is_cut() -> None:
    """Telling an error takes no longer than telling a token."""
    caller = Caller(STREAMED)
    failing = asyncio.Event()
    task = caller.begin(
        ready_pipeline(ScriptedEngine(streams(event("a"), failing, InternalError("no"))), stream=STRICT)
    )
    await caller.received(event("a"))
    caller.reads.clear()
    failing.set()
    await task
    assert not caller.ended


async def test_a_slow_reader_who_takes_something_is_served() -> None:
    """Pauses shorter than the limit add up to no fault."""
    caller = Caller(STREAMED)
    a_second = StreamSettings(keep_alive_seconds=60, stalled_reader_seconds=1)
    task = caller.begin(ready_pipeline(ScriptedEngine(streams(*[event("a")] * 10, DONE)), stream=a_second))
    for _ in range(8):
        caller.reads.clear()
        await asyncio.sleep(0.2)
        caller.reads.set()
        await asyncio.sleep(0)
    await task
    assert caller.body.endswith(DONE)


async def test_a_caller_who_leaves_closes_the_engine_s_stream() -> None:
    """The generator's own clean-up runs, and the engine is told to stop."""
    closed = asyncio.Event()
    engine = ScriptedEngine()

    async def script(_: Call) -> Stream:
        async def events() -> AsyncGenerator[bytes]:
            try:
                yield event("a")
                await asyncio.Event().wait()
            finally:
                closed.set()

        return Stream(events())

    engine.script = script
    caller = Caller(STREAMED)
    task = caller.begin(ready_pipeline(engine))
    await caller.received(event("a"))
    caller.leave()
    await task
    assert closed.is_set()
    assert engine.aborted == [engine.calls[0].request_id]


async def test_nothing_is_sent_before_the_status_line() -> None:
    """Even when the keep-alive task is still sending it, to a socket that takes its time."""
    taken: list[str] = []
    released = asyncio.Event()

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            await released.wait()
        taken.append(message["type"])

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    exchange = Exchange({"method": "POST", "path": "/", "headers": []}, receive, send)
    opening = asyncio.create_task(exchange.open_stream())
    await asyncio.sleep(0)
    writing = asyncio.create_task(exchange.event(b"data: x\n\n"))
    await asyncio.sleep(0)
    assert taken == []
    released.set()
    await asyncio.gather(opening, writing)
    assert taken == ["http.response.start", "http.response.body"]


async def test_a_pause_of_this_process_cuts_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the reader took meanwhile has yet to be seen when the timer fires."""
    monkeypatch.setattr(sse, "STOOD_STILL_SECONDS", 0.2)
    caller = Caller(STREAMED)
    settings = StreamSettings(keep_alive_seconds=60, stalled_reader_seconds=1)
    engine = ScriptedEngine(streams(event("a"), event("b"), DONE))
    caller.reads.clear()
    task = caller.begin(ready_pipeline(engine, stream=settings))
    await engine.asked.wait()
    for _ in range(10):
        await asyncio.sleep(0)
    time.sleep(1.6)  # noqa: ASYNC251 - the pause
    for _ in range(3):
        await asyncio.sleep(0)  # its timers
    caller.reads.set()
    await task
    assert caller.body == event("a") + event("b") + DONE
    assert engine.aborted == []
