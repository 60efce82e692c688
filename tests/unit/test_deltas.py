"""The short way of a streamed token says what vLLM's own generator says, event by event, however the stream ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import pytest_asyncio

from jubako.vocabulary import Call, Route, Stream
from tests.caller import SECONDS, call_of
from tests.scripted_core import encode, front_end
from tests.short_way import CHAT, ROUTES, RUNNING, STORY, TEXT, USAGE, Front, Step, both, one_by_one, say

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(model_folder: Path) -> AsyncIterator[Front]:
    """One front end for all tests of the module."""
    engine, core = await front_end(model_folder)
    yield Front(engine, core)
    await engine.close(0)


@pytest.mark.parametrize(("route", "body"), ROUTES)
@pytest.mark.parametrize("options", [{}, USAGE, RUNNING], ids=["plain", "usage", "running usage"])
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


@pytest.mark.parametrize(("route", "body"), ROUTES)
async def test_text_held_back_for_a_stop_string_is_the_same(front: Front, route: Route, body: dict[str, Any]) -> None:
    """Events without text, then more text than one token's, then the end where the stop string begins."""
    tokens = encode(front.engine, "One two three four five, six seven.")
    short, own = await both(front, route, body | RUNNING | {"stop": ["five, seven", "six"]}, one_by_one(tokens))
    assert short.events == own.events
    assert b'"stop_reason":"six"' in b"".join(short.events)
    assert short.call.usage.generated_tokens == own.call.usage.generated_tokens < len(tokens)


@pytest.mark.parametrize(("route", "body"), ROUTES)
async def test_several_tokens_a_step_are_the_same(front: Front, route: Route, body: dict[str, Any]) -> None:
    """As when an engine guesses ahead; a step may bring none, too."""
    tokens = encode(front.engine, STORY)
    steps: list[Step] = [(tokens[:3], None), (tokens[3:5], None), ([], None), (tokens[5:9], None), ([], ("stop", None))]
    short, own = await both(front, route, body | RUNNING, steps)
    assert short.events == own.events
    assert short.call.usage.generated_tokens == own.call.usage.generated_tokens


@pytest.mark.parametrize(("route", "body"), ROUTES)
@pytest.mark.parametrize("tokens", [1, 2])
async def test_streams_too_short_for_a_pattern_are_the_same(
    front: Front, route: Route, body: dict[str, Any], tokens: int
) -> None:
    """vLLM writes all of it."""
    steps = one_by_one(encode(front.engine, STORY)[:tokens])
    short = await say(front, route, body | USAGE, steps)
    with mock.patch("jubako.engine.vllm.adapter._is_plain", return_value=False):
        own = await say(front, route, body | USAGE, steps)
    assert short.events == own.events


@pytest.mark.parametrize(("route", "body"), ROUTES)
@pytest.mark.parametrize(
    "failure", [("error", None), RuntimeError("of the engine"), "dead"], ids=["in a step", "of the handler", "dead"]
)
async def test_errors_in_mid_stream_are_the_same(
    front: Front, route: Route, body: dict[str, Any], failure: Any
) -> None:
    """The same events before it, the same refusal, the same tokens on record."""
    from vllm.v1.engine.exceptions import EngineDeadError

    tokens = encode(front.engine, STORY)[:8]
    failing = EngineDeadError() if failure == "dead" else failure
    steps: list[Step | Exception] = [([token], None) for token in tokens]
    steps.append(failing if isinstance(failing, Exception) else ([], failing))
    short, own = await both(front, route, body, steps)
    assert short.error is not None
    assert (type(short.error), str(short.error)) == (type(own.error), str(own.error))
    assert short.events == own.events
    assert short.call.usage.generated_tokens == own.call.usage.generated_tokens == len(tokens)


@pytest.mark.parametrize(("route", "body"), ROUTES)
@pytest.mark.parametrize("how", ["the reader is cancelled", "the events are closed", "the call is aborted"])
async def test_a_stream_that_is_given_up_stops_the_engine(
    front: Front, route: Route, body: dict[str, Any], how: str
) -> None:
    """The engine is told, and what it did is on record."""
    call = call_of(route, {"stream": True, "max_tokens": 16, **body})
    reply = await front.engine.answer(call)
    assert isinstance(reply, Stream)
    tokens, parts = encode(front.engine, STORY)[:6], list[bytes]()
    reader = asyncio.create_task(_read(reply, parts, enough=4 if how == "the events are closed" else None))
    async with asyncio.timeout(SECONDS):
        while not front.core.requests:
            await asyncio.sleep(0)
        (name,) = front.core.requests
        for token in tokens:
            before = len(parts)
            front.core.step({name: [token]})
            while (len(parts) == before and not reader.done()) or not front.core.idle:
                await asyncio.sleep(0)
        if how == "the reader is cancelled":
            reader.cancel()
        elif how == "the call is aborted":
            await front.engine.abort(call.request_id)
        await asyncio.wait([reader])
    assert name in front.core.aborted
    assert name not in front.engine._launched.llm.output_processor.request_states
    # Tokens of steps after the reader left were made for nobody and do not exist for it.
    assert 3 <= call.usage.generated_tokens <= len(tokens)
    assert call.usage.generated_tokens == len(tokens) or how == "the events are closed"


async def _read(reply: Stream, parts: list[bytes], enough: int | None) -> None:
    async with aclosing(reply.events) as events:
        async for part in events:
            parts.append(part)
            if len(parts) == enough:
                return


@pytest.mark.parametrize(("route", "body"), ROUTES)
async def test_a_reader_who_is_behind_has_whole_events_in_order(
    front: Front, route: Route, body: dict[str, Any]
) -> None:
    """What came meanwhile is handed over at once; before there is a pattern, too."""
    tokens = encode(front.engine, STORY)
    for ahead in (1, 2, 3, 7):
        call = call_of(route, {"stream": True, "max_tokens": 16, **body})
        reply = await front.engine.answer(call)
        assert isinstance(reply, Stream)
        parts: list[bytes] = []
        reader = asyncio.create_task(_read(reply, parts, None))
        async with asyncio.timeout(SECONDS):
            while not front.core.requests:
                await asyncio.sleep(0)
            (name,) = front.core.requests
            for at in range(0, len(tokens), ahead):
                for token in tokens[at : at + ahead]:
                    last = token is tokens[-1] and at + ahead >= len(tokens)
                    front.core.step({name: [token]}, finish={name: ("length", None)} if last else None)
                while not front.core.idle:
                    await asyncio.sleep(0)
            await reader
        assert _text(parts, route) == STORY
        assert parts[-1] == b"data: [DONE]\n\n"


def _text(parts: Sequence[bytes], route: Route) -> str:
    """The text of all events."""
    found = ""
    for event in b"".join(parts).split(b"\n\n")[:-2]:
        choice = json.loads(event.removeprefix(b"data: "))["choices"][0]
        found += choice["delta"]["content"] if route is Route.CHAT else choice["text"]
    return found


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (Route.CHAT, CHAT | {"logprobs": True, "return_tokens_as_token_ids": True}),
        (Route.CHAT, CHAT | {"return_token_ids": True}),
        (Route.COMPLETIONS, TEXT | {"logprobs": 0}),
        (Route.COMPLETIONS, TEXT | {"echo": True}),
        (Route.COMPLETIONS, TEXT | {"prompt": ["One", "Two"]}),
    ],
    ids=lambda value: str(value)[-40:],
)
async def test_what_differs_in_more_than_its_text_is_vllm_s(front: Front, route: Route, body: dict[str, Any]) -> None:
    """Its numbers, token ids or choices are not the short way's to write."""
    call = call_of(route, {"stream": True, "max_tokens": 16, **body})
    reply = await front.engine.answer(replaced(call, prompts=len(body["prompt"]) if "prompt" in body else 1))
    assert isinstance(reply, Stream)
    assert front.engine._generations[call.request_id].deltas is None
    await reply.events.aclose()


def replaced(call: Call, prompts: int) -> Call:
    """The call, with as many prompts as the boundary would count."""
    return replace(call, demand=replace(call.demand, prompts=prompts if prompts == 2 else 1))


async def test_the_metrics_of_vllm_count_each_token_s_wait(front: Front) -> None:
    """One observation for each token after the first, however they are put together."""
    from prometheus_client import REGISTRY

    labels = {"engine": "0", "model_name": "scripted"}
    names = [f"vllm:inter_token_latency_seconds_{what}" for what in ("count", "sum")]
    before = [REGISTRY.get_sample_value(name, labels) or 0.0 for name in names]
    await say(front, Route.CHAT, CHAT, one_by_one(encode(front.engine, STORY)[:9]))
    after = [REGISTRY.get_sample_value(name, labels) or 0.0 for name in names]
    assert after[0] - before[0] == 8
    assert after[1] > before[1]
