"""What one request, or a backlog of steps, must not hold up: a place in the engine, and everybody's event loop."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jubako.engine.vllm.shortcuts import take_turns
from jubako.vocabulary import Route, Stream
from tests.caller import SECONDS, call_of
from tests.scripted_core import encode, front_end

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me"}]}
TEXT: dict[str, Any] = {"prompt": "Once"}


@pytest.mark.parametrize(
    ("route", "body"),
    [(Route.CHAT, CHAT), (Route.COMPLETIONS, TEXT), (Route.COMPLETIONS, TEXT | {"n": 3, "temperature": 1})],
    ids=["chat", "completion", "choices"],
)
async def test_the_end_of_what_is_generated_is_told_though_nobody_reads(
    model_folder: Path, route: Route, body: dict[str, Any]
) -> None:
    """Once, with the usage exact: whoever waits for a place need not wait for a slow reader."""
    engine, core = await front_end(model_folder)
    told: list[int] = []
    call = call_of(route, {"stream": True, "max_tokens": 16, **body})
    try:
        reply = await engine.answer(call, None, lambda: told.append(call.usage.generated_tokens))
        assert isinstance(reply, Stream)
        tokens = encode(engine, "One two three four")
        reading = asyncio.ensure_future(anext(reply.events))
        async with asyncio.timeout(SECONDS):
            while len(core.requests) < body.get("n", 1):
                await asyncio.sleep(0)
            for token in tokens[:-1]:
                core.step({name: [token] for name in core.requests})
            core.step(
                {name: [tokens[-1]] for name in core.requests}, finish=dict.fromkeys(core.requests, ("length", None))
            )
            await reading
            while not told:
                await asyncio.sleep(0)
        assert told == [len(tokens) * body.get("n", 1)]
        assert call.usage.prompt_tokens > 0
        await reply.events.aclose()
        assert told == [call.usage.generated_tokens]
    finally:
        await engine.close(0)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_stream_that_is_given_up_is_no_end_of_generation(model_folder: Path, *, fails: bool) -> None:
    """Its length says nothing of how long replies are; and nobody who is told of an end can harm other streams."""
    engine, core = await front_end(model_folder)
    told: list[str] = []

    def tell(name: str) -> None:
        told.append(name)
        if fails:
            raise RuntimeError("secret")

    async def ask(name: str) -> Stream:
        call = replace(call_of(Route.CHAT, {"stream": True, "max_tokens": 16, **CHAT}), request_id=name)
        reply = await engine.answer(call, None, lambda: tell(name))
        assert isinstance(reply, Stream)
        await anext(reply.events)
        return reply

    try:
        asking = [asyncio.create_task(ask(name)) for name in ("left", "read")]
        tokens = encode(engine, "One two three four")
        async with asyncio.timeout(SECONDS):
            while len(core.requests) < len(asking):
                await asyncio.sleep(0)
            for token in tokens[:-1]:
                core.step({name: [token] for name in core.requests})
            left, read = await asyncio.gather(*asking)
            await anext(left.events)
            await left.events.aclose()
            assert told == []
            core.step(
                {name: [tokens[-1]] for name in core.requests}, finish=dict.fromkeys(core.requests, ("length", None))
            )
            rest = [event async for event in read.events]
        assert rest[-1] == b"data: [DONE]\n\n"
        assert told == ["read"]
    finally:
        await engine.close(0)


async def test_a_backlog_of_steps_leaves_turns_to_others() -> None:
    """What arrived while the process stood still is worked off in between, not first."""
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def get() -> int:
        return await queue.get()

    core: Any = SimpleNamespace(outputs_queue=queue, get_output_async=get)
    take_turns(core)
    for number in range(200):
        queue.put_nowait(number)
    taken: list[int] = []

    async def work() -> None:
        while len(taken) < 200:
            taken.append(await core.get_output_async())
            time.sleep(0.001)  # noqa: ASYNC251 - what a step costs

    working, turns = asyncio.create_task(work()), 0
    while not working.done():
        await asyncio.sleep(0)
        turns += 1
    await working
    assert taken == list(range(200))
    assert turns > 5
