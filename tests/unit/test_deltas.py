"""The short way of a streamed token says what vLLM's own generator says, event by event, however the stream ends."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import pytest_asyncio

from jubako.errors import InternalError, Unavailable
from jubako.vocabulary import Call, Route, Stream
from tests.caller import SECONDS, call_of
from tests.scripted_core import ScriptedCore, encode, front_end

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

CREATED = re.compile(rb'"created":\d+')
STORY = 'Once "upon" a time,\nthere was a café with 🍜 noodles \\ and \u2028 a tab\t<|tool|> </s> 日本語.'


@dataclass
class Front:
    """The engine and what it is told to say."""

    engine: Any
    core: ScriptedCore


@dataclass
class Said:
    """A whole stream: its events, and what of it was counted."""

    events: list[bytes]
    call: Call
    error: Exception | None = None
    parts: list[bytes] = field(default_factory=list)
    """As they were handed over: joined where the reader was behind."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(model_folder: Path) -> AsyncIterator[Front]:
    """One front end for all tests of the module."""
    engine, core = await front_end(model_folder)
    yield Front(engine, core)
    await engine.close(0)


Step = tuple[Sequence[int], tuple[str, int | str | None] | None]


async def say(front: Front, route: Route, body: dict[str, Any], steps: Sequence[Step | Exception]) -> Said:
    """Ask, have the engine say `steps`, and take what comes; each step's events are taken before the next step."""
    call = call_of(route, {"stream": True, "max_tokens": 16, **body})
    reply = await front.engine.answer(call)
    assert isinstance(reply, Stream)
    said = Said([], call)

    async def read() -> None:
        try:
            async for part in reply.events:
                said.parts.append(part)
        except (InternalError, Unavailable) as error:
            said.error = error

    reader = asyncio.create_task(read())
    async with asyncio.timeout(SECONDS):
        while not front.core.requests:
            await asyncio.sleep(0)
        (name,) = front.core.requests
        for step in steps:
            if isinstance(step, Exception):
                front.engine._launched.llm.output_processor.propagate_error(step)  # noqa: SLF001 - as vLLM does
                continue
            tokens, end = step
            before = len(said.parts)
            front.core.step({name: tokens}, finish=None if end is None else {name: end})
            while len(said.parts) == before and not reader.done():
                await asyncio.sleep(0)
            await asyncio.sleep(0)
        await reader
    front.core.requests.clear()
    said.events = [CREATED.sub(b'"created":0', one + b"\n\n") for one in b"".join(said.parts).split(b"\n\n")[:-1]]
    return said


async def both(front: Front, route: Route, body: dict[str, Any], steps: Sequence[Step | Exception]) -> tuple[Said, Said]:
    """The stream by the short way, and by vLLM's own generator alone."""
    with mock.patch("jubako.engine.vllm.deltas.Pattern.event", autospec=True, side_effect=_event) as written:
        short = await say(front, route, body, steps)
    short_way = written.called
    with mock.patch("jubako.engine.vllm.adapter._is_plain", return_value=False):
        own = await say(front, route, body, steps)
    assert short_way == (len(steps) > 2 and body.get("plain", True)), "the way that was meant was not taken"
    return short, own


def _event(pattern: Any, text: str) -> bytes:
    return f"{pattern.before}{_quoted(text)}{pattern.after}".encode()


def _quoted(text: str) -> str:
    from jubako.engine.vllm import deltas

    return deltas._quoted(text)  # noqa: SLF001


def one_by_one(tokens: Sequence[int], end: tuple[str, int | str | None] = ("length", None)) -> list[Step]:
    """Each token a step of its own; the last one ends the stream."""
    return [([token], end if at == len(tokens) - 1 else None) for at, token in enumerate(tokens)]


CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me."}]}
TEXT: dict[str, Any] = {"prompt": "Once"}
ROUTES = [pytest.param(Route.CHAT, CHAT, id="chat"), pytest.param(Route.COMPLETIONS, TEXT, id="completion")]
USAGE = {"stream_options": {"include_usage": True}}


@pytest.mark.parametrize(("route", "body"), ROUTES)
@pytest.mark.parametrize("options", [{}, USAGE], ids=["plain", "usage"])
@pytest.mark.parametrize(
    "end",
    [("length", None), ("stop", None), ("stop", 2), ("stop", "noodles"), ("abort", None), ("repetition", None)],
    ids=str,
)
async def test_a_stream_is_the_same(
    front: Front, route: Route, body: dict[str, Any], options: dict[str, Any], end: tuple[str, int | str | None]
) -> None:
    """Text of every kind, characters that take several tokens included, and every end there is."""
    tokens = encode(front.engine, STORY)
    short, own = await both(front, route, body | options, one_by_one(tokens, end))
    assert short.events == own.events
    assert len(short.events) >= len(tokens) + 1
    assert (short.call.usage.tokens, short.call.usage.cut) == (own.call.usage.tokens, own.call.usage.cut)
    assert short.call.usage.generated_tokens == len(tokens)
