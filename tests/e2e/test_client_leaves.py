"""A caller who goes away: the engine stops for it at once, and serves the next as if nothing were."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import openai
import pytest

from tests.contract.corpus import BASE, CHAT, COMPLETIONS, ENDLESS_TOKENS, says
from tests.engine_metrics import CACHE, GENERATED, await_busy, await_rest, gauges
from tests.project import Served, until

if TYPE_CHECKING:
    import httpx

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

LONG: dict[str, Any] = {"model": BASE, "temperature": 0, "max_tokens": ENDLESS_TOKENS}
ENDLESS: dict[str, Any] = {"ignore_eos": True}
TELL = says("Tell me a very long story.")
SEED = 20
LEAVERS = 30


@pytest.fixture(autouse=True)
def spared(request: pytest.FixtureRequest, jubako_server: Served) -> Iterator[None]:
    """The engine is at rest before and after, and the request did not come to its own end: the engine did abort.

    The parameter is how many tokens the request would have had.
    """
    await_rest(jubako_server)
    before = gauges(jubako_server)[GENERATED]
    yield
    await_rest(jubako_server)
    assert gauges(jubako_server)[GENERATED] - before < getattr(request, "param", ENDLESS_TOKENS)


def test_a_closed_stream_stops_the_engine(client: Any, jubako_server: Served) -> None:
    """After some tokens, as a user who has read enough."""
    with client.chat.completions.create(messages=TELL, stream=True, extra_body=ENDLESS, **LONG) as stream:
        for _, _ in zip(range(5), stream, strict=False):
            pass
        with jubako_server.engine_held():
            await_busy(jubako_server)
            assert gauges(jubako_server)[CACHE] > 0


async def test_a_cancelled_async_stream_stops_the_engine(async_client: Any, jubako_server: Served) -> None:
    """A task that is cancelled closes its connection."""

    async def read() -> None:
        stream = await async_client.completions.create(prompt="Once", stream=True, extra_body=ENDLESS, **LONG)
        async for _ in stream:
            pass

    task = asyncio.create_task(read())
    await asyncio.to_thread(await_busy, jubako_server)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_whole_reply_nobody_waits_for_stops_the_engine(client: Any) -> None:
    """A client's timeout closes its connection; nothing was sent yet."""
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=2).chat.completions.create(messages=TELL, extra_body=ENDLESS, **LONG)


def test_every_answer_of_a_request_is_stopped(client: Any, jubako_server: Served) -> None:
    """With n answers and several prompts, the engine runs many for one request."""
    prompts = ["Once upon a time", "In the beginning"]
    options = LONG | {"temperature": 1.0, "n": 3}
    with client.completions.create(prompt=prompts, stream=True, extra_body=ENDLESS, **options) as stream:
        next(iter(stream))
        await_busy(jubako_server, 6)


def connect(server: Served, body: dict[str, Any], *, path: str = CHAT, sent: int | None = None) -> socket.socket:
    """A connection that has sent its request, or only so many bytes of the body; its window is small."""
    address = urlsplit(server.url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect((address.hostname, address.port))
    content = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: test", f"authorization: Bearer {server.key}"]
    lines += ["content-type: application/json", f"content-length: {len(content)}", "", ""]
    connection.sendall("\r\n".join(lines).encode() + content[:sent])
    return connection


def test_half_a_request_leaves_nothing(jubako_server: Served, http: httpx.Client) -> None:
    """A caller who leaves while it sends never reaches the engine, and the next is served."""
    with connect(jubako_server, {"messages": TELL, **LONG, **ENDLESS}, sent=20):
        pass
    assert http.get("/v1/models").status_code == 200
    assert gauges(jubako_server)[CACHE] == 0


@pytest.mark.parametrize("spared", [8 * ENDLESS_TOKENS], indirect=True)
def test_a_reader_who_stops_reading_is_cut(jubako_server: Served) -> None:
    """Though it holds its connection open: the engine does not write into the void, and the server holds nothing."""
    body = {"prompt": "Once upon a time", "stream": True, "n": 8, "logprobs": 20}
    body |= LONG | ENDLESS | {"temperature": 1.5}
    with connect(jubako_server, body, path=COMPLETIONS) as connection:
        assert connection.recv(12) == b"HTTP/1.1 200"
        await_busy(jubako_server)
        await_rest(jubako_server, 120)
        port, worker = connection.getsockname()[1], jubako_server.worker()
        until(
            lambda: port not in {getattr(one.raddr, "port", 0) for one in worker.net_connections()},
            "the server has let go of the connection",
        )


async def _leave_somewhere(server: Served, chance: random.Random) -> None:
    body = {"messages": TELL, "stream": chance.random() < 0.7, **LONG, **ENDLESS}
    connection = connect(server, body, sent=chance.choice([None, None, None, 0, 30]))
    connection.settimeout(0)
    await asyncio.sleep(chance.uniform(0, 0.6))
    if chance.random() < 0.5:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    connection.close()


@pytest.mark.parametrize("spared", [LEAVERS * ENDLESS_TOKENS // 2], indirect=True)
async def test_many_who_leave_anywhere_leave_nothing(async_client: Any, jubako_server: Served) -> None:
    """In the body, in the queue, in the prompt, in the answer; then the engine is at rest and answers right."""
    chance = random.Random(SEED)
    await asyncio.gather(*(_leave_somewhere(jubako_server, chance) for _ in range(LEAVERS)))
    await asyncio.to_thread(await_rest, jubako_server)
    reply = await async_client.chat.completions.create(
        model=BASE, messages=says("What is the capital of France?"), temperature=0, max_tokens=16
    )
    assert reply.choices[0].message.content == "The capital of France is Paris."


async def test_one_who_leaves_takes_nobody_along(async_client: Any, jubako_server: Served) -> None:
    """Not even one who sends the same request id."""
    same = {"X-Request-Id": "one-id-for-two"}
    asked: dict[str, Any] = {"messages": TELL, "stream": True, "extra_headers": same, "extra_body": ENDLESS}
    leaver = await async_client.chat.completions.create(**asked, **LONG)
    stayer = await async_client.chat.completions.create(**asked, **LONG | {"max_tokens": 60})
    await anext(aiter(leaver))
    await leaver.close()
    finishes = [chunk.choices[0].finish_reason async for chunk in stayer]
    assert finishes[-1] == "length"
    assert len(finishes) > 30


def test_the_log_tells_who_left(client: Any, jubako_server: Served) -> None:
    """As cancelled, by its id, and without a word of the prompt."""
    options: dict[str, Any] = {"stream": True, "extra_body": ENDLESS, "extra_headers": {"X-Request-Id": "the-leaver"}}
    with client.chat.completions.create(messages=says("a canary in a prompt"), **options, **LONG) as stream:
        next(iter(stream))
    until(lambda: "request=the-leaver" in jubako_server.log, "the request is logged")
    line = next(line for line in jubako_server.log.splitlines() if "request=the-leaver" in line)
    assert "outcome=cancelled" in line
    assert "canary" not in jubako_server.log
