"""A stream by the short way and by vLLM's own generator, before an engine that says what a test has it say."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import pytest

from jubako.engine.vllm.deltas import Deltas, Pattern
from jubako.errors import InternalError, Unavailable
from jubako.vocabulary import Call, Route, Stream
from tests.caller import SECONDS, call_of
from tests.scripted_core import ScriptedCore

CREATED = re.compile(rb'"created":\d+')
NUMBERS = itertools.count()
"""An id is given once: what is left of a stream is cleared away at some time, under its id."""
ID = re.compile(rb'"id":"(?:chatcmpl|cmpl)-id-\d+"')
TOOL_ID = re.compile(rb'"id":"chatcmpl-tool-[0-9a-f]+"')
STORY = 'Once "upon" a time,\nthere was a café with 🍜 noodles \\ and \u2028 a tab\t<|tool|> </s> 日本語.'
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me."}]}
TEXT: dict[str, Any] = {"prompt": "Once"}
ROUTES = [pytest.param(Route.CHAT, CHAT, id="chat"), pytest.param(Route.COMPLETIONS, TEXT, id="completion")]
USAGE = {"stream_options": {"include_usage": True}}
RUNNING = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
Step = tuple[Sequence[int], tuple[str, int | str | None] | None]


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
    offers: int = 0
    parts: list[bytes] = field(default_factory=list)
    """As they were handed over: joined where the reader was behind."""


Scores = Callable[[Sequence[int]], Any]
"""Of a step's tokens, what the engine says of their probabilities."""


async def say(
    front: Front, route: Route, body: dict[str, Any], steps: Sequence[Step | Exception], scores: Scores | None = None
) -> Said:
    """Ask, have the engine say `steps`, and take what comes; each step's events are taken before the next step."""
    call = replace(call_of(route, {"stream": True, "max_tokens": 16, **body}), request_id=f"id-{next(NUMBERS)}")
    reply = await front.engine.answer(call)
    assert isinstance(reply, Stream)
    said = Said([], call)
    if reply.through is not None:
        reply.through(lambda event: _take(said, event))

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
                front.engine._launched.llm.output_processor.propagate_error(step)
                continue
            tokens, end = step
            told = None if scores is None else {name: scores(tokens)}
            front.core.step({name: tokens}, finish=None if end is None else {name: end}, logprobs=told)
            while not (front.core.idle and _taken(front, name)):
                await asyncio.sleep(0)
            for _ in range(8):  # every task that the step woke has its turn
                await asyncio.sleep(0)
        await reader
    front.core.requests.clear()
    said.events = [_comparable(one + b"\n\n") for one in b"".join(said.parts).split(b"\n\n")[:-1]]
    return said


def _taken(front: Front, name: str) -> bool:
    """Whether nothing waits to be taken of what the engine said, by either way."""
    state = front.engine._launched.llm.output_processor.request_states.get(name)
    if state is None:
        return True
    queue = state.queue
    if isinstance(queue, Deltas):
        return not queue._items and queue._waiter is not None
    return bool(queue.output is None)


def _take(said: Said, event: bytes) -> bool:
    """Two of three that are offered; the rest come the other way, and the order is to be kept."""
    said.offers += 1
    if said.offers % 3 == 0:
        return False
    said.parts.append(event)
    return True


def _comparable(event: bytes) -> bytes:
    """The event without what is of its moment: the second, its request's id, and the random id of a tool call."""
    return TOOL_ID.sub(b'"id":"tool"', CREATED.sub(b'"created":0', ID.sub(b'"id":"same"', event)))


@contextmanager
def watched() -> Iterator[list[str]]:
    """The texts whose events are written the short way."""
    texts: list[str] = []
    event = Pattern.event

    def write(pattern: Pattern, text: str, detokenizer: Any, probabilities: str = "") -> bytes:
        texts.append(text)
        return event(pattern, text, detokenizer, probabilities)

    with mock.patch.object(Pattern, "event", write):
        yield texts


async def both(
    front: Front, route: Route, body: dict[str, Any], steps: Sequence[Step | Exception], scores: Scores | None = None
) -> tuple[Said, Said]:
    """The stream by the short way, and by vLLM's own generator alone."""
    with watched() as texts:
        short = await say(front, route, body, steps, scores)
    assert texts, "the short way was not taken"
    assert short.offers
    with mock.patch("jubako.engine.vllm.adapter._is_plain", return_value=False):
        own = await say(front, route, body, steps, scores)
    return short, own


def one_by_one(tokens: Sequence[int], end: tuple[str, int | str | None] = ("length", None)) -> list[Step]:
    """Each token a step of its own; the last one ends the stream."""
    return [([token], end if at == len(tokens) - 1 else None) for at, token in enumerate(tokens)]
