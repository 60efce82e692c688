"""Events that are offered: sent at once or not at all, in their order, whatever the reader's pace."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator

import pytest
import uvicorn

from jubako.boundary import sse
from jubako.boundary.application import Application
from jubako.boundary.exchange import Exchange
from jubako.vocabulary import Call, Offer, Stream
from tests.caller import ASKED, SECONDS, Caller, ready_pipeline
from tests.scripted_engine import DONE, ScriptedEngine, event
from tests.unit.test_sse import HASTY, STRICT

STREAMED = {**ASKED, "stream": True}


class Offering(ScriptedEngine):
    """Yields the first event and the last; a test offers what is between, and what is not taken is yielded."""

    def __init__(self) -> None:
        super().__init__(self._stream)
        self.offer: Offer | None = None
        self.refused: list[bytes] = []
        self.more = asyncio.Event()
        self.over = False

    async def _stream(self, _: Call) -> Stream:
        return Stream(self._events(), self._through)

    def _through(self, offer: Offer) -> None:
        self.offer = offer

    async def _events(self) -> AsyncGenerator[bytes]:
        yield event("first")
        while not self.over:
            await self.more.wait()
            self.more.clear()
            refused, self.refused = self.refused, []
            for one in refused:
                yield one
        yield DONE

    def say(self, text: str) -> bool:
        """Offer one event; whether it was taken."""
        assert self.offer is not None
        taken = not self.refused and not self.more.is_set() and self.offer(event(text))
        if not taken:
            self.refused.append(event(text))
            self.more.set()
        return taken

    def end(self) -> None:
        """No more events."""
        self.over = True
        self.more.set()


async def test_an_offered_event_is_sent_at_once() -> None:
    """Without a turn of the task that sends the others; before the end, which is held back as ever."""
    engine, caller = Offering(), Caller(STREAMED)
    task = caller.begin(ready_pipeline(engine))
    await caller.received(event("first"))
    assert engine.say("a")
    assert engine.say("b")
    assert caller.body == event("first") + event("a") + event("b")
    engine.end()
    await task
    assert caller.body == event("first") + event("a") + event("b") + DONE


async def test_what_the_reader_does_not_take_is_not_sent_in_part() -> None:
    """It is refused, and comes once the reader reads, in its order."""
    engine, caller = Offering(), Caller(STREAMED)
    task = caller.begin(ready_pipeline(engine))
    await caller.received(event("first"))
    caller.reads.clear()
    assert not engine.say("a")
    assert not engine.say("b")
    await asyncio.sleep(0)
    caller.reads.set()
    await caller.received(event("b"))
    engine.end()
    await task
    assert caller.body == event("first") + event("a") + event("b") + DONE


async def test_nothing_is_taken_while_another_event_waits_for_the_reader() -> None:
    """It would overtake that one."""
    engine, caller = Offering(), Caller(STREAMED)
    task = caller.begin(ready_pipeline(engine))
    await caller.received(event("first"))
    caller.reads.clear()
    assert not engine.say("a")
    for _ in range(5):  # the task is at the socket now
        await asyncio.sleep(0)
    assert engine.offer is not None
    assert not engine.offer(event("b"))
    caller.reads.set()
    await caller.received(event("a"))
    engine.end()
    await task
    assert event("b") not in caller.body


async def test_a_reader_who_takes_nothing_is_cut_though_events_were_offered() -> None:
    """A refused offer leaves no trace of an event that was sent."""
    engine, caller = Offering(), Caller(STREAMED)
    task = caller.begin(ready_pipeline(engine, stream=STRICT))
    await caller.received(event("first"))
    caller.reads.clear()
    assert not engine.say("a")
    async with asyncio.timeout(SECONDS):
        while not engine.aborted:
            await asyncio.sleep(0.01)
    caller.leave()
    await task
    assert caller.body == event("first")


async def test_comments_keep_a_stream_open_between_offers() -> None:
    """Silence is counted from the last event, offered or not."""
    engine, caller = Offering(), Caller(STREAMED)
    task = caller.begin(ready_pipeline(engine, stream=HASTY))
    await caller.received(event("first"))
    assert engine.say("a")
    await caller.received(event("a") + sse.KEEP_ALIVE)
    engine.end()
    await task
    assert caller.body.replace(sse.KEEP_ALIVE, b"") == event("first") + event("a") + DONE


async def test_nothing_is_taken_before_the_status_line() -> None:
    """Whoever begins the stream does so first."""
    sent: list[object] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request"}

    async def send(message: object) -> None:
        sent.append(message)

    exchange = Exchange({"method": "POST", "path": "/", "headers": []}, receive, send)
    assert not exchange.offer(event("a"))
    assert sent == []
    await exchange.open_stream()
    assert exchange.offer(event("a"))
    assert len(sent) == 2


async def test_a_connection_that_fails_is_no_error_of_who_offers() -> None:
    """Who offers works for all streams; the task of this one meets the error."""
    broken = False

    async def receive() -> dict[str, object]:
        return {"type": "http.request"}

    async def send(_: object) -> None:
        if broken:
            raise RuntimeError("of the connection")

    exchange = Exchange({"method": "POST", "path": "/", "headers": []}, receive, send)
    await exchange.open_stream()
    assert exchange.offer(event("a"))
    broken = True
    assert not exchange.offer(event("b"))
    with pytest.raises(RuntimeError):
        await exchange.event(event("b"))


async def test_over_a_real_socket_no_byte_is_lost_or_sent_twice() -> None:
    """The reader stops until uvicorn's buffers are full, and then reads on."""
    events = [event(f"{number} " + "x" * 2000) for number in range(4000)]
    refused = 0

    async def handle(exchange: Exchange) -> None:
        nonlocal refused
        await exchange.open_stream()
        for one in events:
            if not exchange.offer(one):
                refused += 1
                await exchange.event(one)
        await exchange.close_stream()

    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(Application(handle), log_config=None, lifespan="off", http="httptools")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1], limit=2**16)
    writer.write(b"GET / HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")
    async with asyncio.timeout(6 * SECONDS):
        while not refused:
            await asyncio.sleep(0.01)
        text = await reader.read()
        writer.close()
        server.should_exit = True
        await serving
    head, _, body = text.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert _unchunked(body) == b"".join(events)


def _unchunked(body: bytes) -> bytes:
    parts: list[bytes] = []
    at = 0
    while True:
        end = body.index(b"\r\n", at)
        size = int(body[at:end], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(body[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
