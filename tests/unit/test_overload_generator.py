"""The load generator keeps its schedule whatever the server does, and closes what it opened."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from tests.bench.overload.generator import HOST, Arrival, Caller, Load, Overrun, closed_loop, lengths, open_loop

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
EVENTS = (b'{"choices":[{"text":"a"}]}', b'{"choices":[{"text":"b"}]}')
REFUSAL = b'{"error":{"code":"queue_full"}}'
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Never answer; leave when the caller does."""
    await reader.read()


def replying(tokens: int, tail: bytes = b"data: [DONE]\n\n") -> Answer:
    """Two tokens, a usage that says `tokens`, and the end."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        usage = b'{"choices":[],"usage":{"completion_tokens":%d}}' % tokens
        writer.write(STREAM + b"".join(b"data: %s\n\n" % event for event in (*EVENTS, usage)) + tail)

    return answer


async def refusing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """No room."""
    head = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 2\r\nretry-after-ms: 1250\r\ncontent-length: %d\r\n\r\n"
    writer.write(head % len(REFUSAL) + REFUSAL)


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[Caller]:
    """A server that reads each request whole and then does as told."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.split(b":")[1]))
            await answer(reader, writer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, HOST, 0)
    async with server:
        yield Caller("single", "key", server.sockets[0].getsockname()[1], "model")


async def one(answer: Answer) -> Load:
    """One request of two tokens, to its end."""
    async with serving(answer) as caller, Load() as load:
        assert await load.send(Arrival(0.0, caller, "p", 2)).ended(10)
    return load


async def test_arrivals_do_not_wait_for_replies() -> None:
    """The server answers none, and each request is sent all the same."""
    async with serving(silent) as caller:
        arrivals = [Arrival(n / 100, caller, "p", 2) for n in range(30)]
        records = await open_loop(arrivals, until_scheduled=0.2, at_latest=0.5)
    assert len(records) == 30
    assert {record.outcome for record in records} == {"cut"}


async def test_stage_ends_when_what_counts_is_over() -> None:
    """Arrivals go on until then, and no longer."""
    async with serving(replying(2)) as caller:
        arrivals = [Arrival(n / 100, caller, "p", 2) for n in range(6000)]
        records = await open_loop(arrivals, until_scheduled=0.2, at_latest=60)
    assert len(records) < 6000
    assert all(record.outcome == "complete" for record in records if record.scheduled < 0.2)


async def test_too_many_open_requests_end_the_run_loudly() -> None:
    """The loop never becomes a closed one in silence."""
    async with serving(silent) as caller, Load(most_open=3) as load:
        with pytest.raises(Overrun):
            await load.play([Arrival(0.0, caller, "p", 2)] * 4)


async def test_complete_reply_has_a_time_for_each_token() -> None:
    """The usage and the end are no tokens."""
    (record,) = (await one(replying(2))).records()
    assert (record.outcome, len(record.chunks), record.status) == ("complete", 2, 200)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (replying(1), "wrong_length"),
        (replying(2, tail=b""), "no_end"),
        (replying(2, tail=b'data: {"error":{"code":"deadline_exceeded"}}\n\n'), "deadline_exceeded"),
    ],
)
async def test_reply_that_is_short_or_breaks_off_is_not_complete(answer: Answer, code: str) -> None:
    """Goodput counts whole replies only."""
    (record,) = (await one(answer)).records()
    assert (record.outcome, record.code) == ("failed", code)


async def test_refusal_has_its_code_and_the_finer_retry_after() -> None:
    """Milliseconds are read before seconds."""
    (record,) = (await one(refusing)).records()
    assert (record.outcome, record.code, record.retry_after_seconds) == ("refused", "queue_full", 1.25)


async def test_server_that_is_not_there_is_a_failure_not_an_exception() -> None:
    """A stage goes on."""
    async with serving(silent) as caller:
        pass
    async with Load() as load:
        assert await load.send(Arrival(0.0, caller, "p", 2)).ended(10)
    assert load.records()[0].outcome == "failed"


def test_lengths_are_within_their_bounds_and_the_same_for_every_server() -> None:
    """Both servers get the same replies to write; no two neighbours march in step."""
    first, again = (list(itertools.islice(lengths((32, 96), "seed"), 500)) for _ in range(2))
    assert first == again
    assert (min(first), max(first)) == (32, 96)


async def test_closed_loop_keeps_its_number_and_ends_in_time_beside_a_silent_server() -> None:
    """Workers are cancelled, their requests closed and counted."""
    async with serving(silent) as caller:
        records = await closed_loop(caller, 3, seconds=0.2, spread_seconds=0.01, tokens=(2, 2), seed="s")
    assert [record.outcome for record in records] == ["cut"] * 3
