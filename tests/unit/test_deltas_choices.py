"""Several choices of one reply by the short way: the events of vLLM's own generator, fewer writes."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import pytest_asyncio

from jubako.vocabulary import Call, Route, Stream, Usage
from tests.caller import SECONDS, call_of
from tests.scripted_core import ScriptedCore, encode, front_end

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

CHOICES = 3
NUMBERS = itertools.count()
MOMENT = re.compile(rb'"created":\d+|"id":"[a-z]+-id-\d+"')
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me."}]}
TEXT: dict[str, Any] = {"prompt": "Once"}
ROUTES = [pytest.param(Route.CHAT, CHAT, id="chat"), pytest.param(Route.COMPLETIONS, TEXT, id="completion")]
TEXTS = ('Once "upon" a time in the café 🍜', "One two three four five six seven eight", "No\nmore than this, 日本")
Front = tuple[Any, ScriptedCore]
Step = dict[int, list[int]]
Ends = dict[int, tuple[str, int | str | None]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(model_folder: Path) -> AsyncIterator[Front]:
    """One front end for all tests of the module."""
    engine, core = await front_end(model_folder)
    yield engine, core
    await engine.close(0)


def asked(route: Route, body: dict[str, Any]) -> Call:
    """A request for all choices, as the boundary counts it."""
    call = call_of(route, {"stream": True, "max_tokens": 40, "n": CHOICES, "temperature": 1, **body})
    demand = replace(call.demand, choices=CHOICES, output_tokens=40)
    return replace(call, request_id=f"id-{next(NUMBERS)}", demand=demand)


def together(engine: Any) -> list[tuple[Step, Ends]]:
    """Every choice has a token in each step until its text is over; each ends in its own step."""
    tokens = [encode(engine, text) for text in TEXTS]
    return [
        (
            {index: [one[at]] for index, one in enumerate(tokens) if at < len(one)},
            {index: ("length", None) for index, one in enumerate(tokens) if at == len(one) - 1},
        )
        for at in range(max(map(len, tokens)))
    ]


def apart(engine: Any) -> list[tuple[Step, Ends]]:
    """One choice a step, in turn, some with several tokens."""
    steps: list[tuple[Step, Ends]] = []
    tokens = [encode(engine, text) for text in TEXTS]
    for at in range(0, max(map(len, tokens)), 2):
        for index, one in enumerate(tokens):
            if at < len(one):
                steps.append(({index: one[at : at + 2]}, {index: ("stop", None)} if at + 2 >= len(one) else {}))
    return steps


async def say(
    front: Front, route: Route, body: dict[str, Any], steps: Sequence[tuple[Step, Ends]], *, at_once: int = 1
) -> tuple[list[bytes], list[bytes], Usage]:
    """What a stream has: its events, the writes that they took, what was counted. Steps come `at_once` at a time."""
    engine, core = front
    call = asked(route, body)
    reply = await engine.answer(call)
    assert isinstance(reply, Stream)
    assert reply.through is None, "a step's events are to go out together"
    parts: list[bytes] = []

    async def read() -> None:
        parts.extend([part async for part in reply.events])

    reader = asyncio.create_task(read())
    async with asyncio.timeout(SECONDS):
        while len(core.requests) < CHOICES:
            await asyncio.sleep(0)
        names = {int(name.split("_", 1)[0]): name for name in core.requests}
        for number, (tokens, ends) in enumerate(steps):
            core.step(
                {names[index]: new for index, new in tokens.items()},
                finish={names[index]: end for index, end in ends.items()},
            )
            if (number + 1) % at_once == 0:
                while not core.idle:
                    await asyncio.sleep(0)
                for _ in range(12):  # every task that the step woke has its turn
                    await asyncio.sleep(0)
        await reader
    core.requests.clear()
    events = [MOMENT.sub(b"", one) for one in b"".join(parts).split(b"\n\n")[:-1]]
    return events, parts, call.usage


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("making", [together, apart])
@pytest.mark.parametrize(("route", "body"), ROUTES)
async def test_choices_are_the_same_in_fewer_writes(
    front: Front, route: Route, body: dict[str, Any], making: Any, at_once: int, *, running: bool
) -> None:
    """Each event and their order, also for a reader who is behind; each choice ends with its own tokens counted."""
    body = body | {"stream_options": {"include_usage": True, "continuous_usage_stats": running}}
    steps = making(front[0])
    short, parts, used = await say(front, route, body, steps, at_once=at_once)
    with mock.patch("jubako.engine.vllm.adapter._is_plain", return_value=False):
        own, _, vllm_used = await say(front, route, body, steps)
    assert short == own
    assert used.generated_tokens == vllm_used.generated_tokens == sum(len(encode(front[0], text)) for text in TEXTS)
    if making is together:
        assert len(parts) < len(short) * 0.7, "the events of a step took a write each"


@pytest.mark.parametrize(("route", "body"), ROUTES)
async def test_a_reply_of_choices_that_is_given_up_stops_them_all(
    front: Front, route: Route, body: dict[str, Any]
) -> None:
    """The engine is told of each, and what they generated is on record."""
    engine, core = front
    call = asked(route, body)
    reply = await engine.answer(call)
    assert isinstance(reply, Stream)
    first: list[bytes] = []

    async def read() -> None:
        first.append(await anext(reply.events))

    reader = asyncio.create_task(read())
    async with asyncio.timeout(SECONDS):
        while len(core.requests) < CHOICES:
            await asyncio.sleep(0)
        names = list(core.requests)
        for _ in range(3):
            core.step({name: [504] for name in names})
            while not core.idle:
                await asyncio.sleep(0)
        await reader
        await reply.events.aclose()
    assert set(names) <= set(core.aborted)
    assert call.usage.generated_tokens == 3 * CHOICES
    processor = engine._running.llm.output_processor
    async with asyncio.timeout(SECONDS):  # the loop closes generators that nobody holds any more
        while processor.request_states or processor.parent_requests:
            await asyncio.sleep(0)
    core.requests.clear()


async def test_choices_with_a_parser_are_vllm_s_to_write(model_folder: Path) -> None:
    """Each has a parser with a state of its own."""
    served = {"tool_call_parser": "hermes", "enable_auto_tool_choice": True}
    engine, _ = await front_end(model_folder, served=served)
    call = asked(Route.CHAT, CHAT)
    reply = await engine.answer(call)
    assert isinstance(reply, Stream)
    assert engine._generations[call.request_id].deltas is None
    await reply.events.aclose()
    await engine.close(0)
