"""The short way of a streamed token says what vLLM's own generator says, event by event, however the stream ends."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import pytest_asyncio

from jubako.engine.vllm.deltas import Deltas, Pattern
from jubako.errors import InternalError, Unavailable
from jubako.vocabulary import Call, Route, Stream
from tests.caller import SECONDS, call_of
from tests.scripted_core import ScriptedCore, encode, front_end

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

CREATED = re.compile(rb'"created":\d+')
NUMBERS = itertools.count()
"""An id is given once: what is left of a stream is cleared away at some time, under its id."""
ID = re.compile(rb'"id":"(?:chatcmpl|cmpl)-id-\d+"')
TOOL_ID = re.compile(rb'"id":"chatcmpl-tool-[0-9a-f]+"')
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
    offers: int = 0
    parts: list[bytes] = field(default_factory=list)
    """As they were handed over: joined where the reader was behind."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(model_folder: Path) -> AsyncIterator[Front]:
    """One front end for all tests of the module."""
    engine, core = await front_end(model_folder)
    yield Front(engine, core)
    await engine.close(0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parsing(model_folder: Path) -> AsyncIterator[Front]:
    """One that reads tool calls."""
    served = {"tool_call_parser": "hermes", "enable_auto_tool_choice": True}
    engine, core = await front_end(model_folder, served=served)
    yield Front(engine, core)
    await engine.close(0)


Step = tuple[Sequence[int], tuple[str, int | str | None] | None]


async def say(front: Front, route: Route, body: dict[str, Any], steps: Sequence[Step | Exception]) -> Said:
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
            front.core.step({name: tokens}, finish=None if end is None else {name: end})
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

    def write(pattern: Pattern, text: str, detokenizer: Any) -> bytes:
        texts.append(text)
        return event(pattern, text, detokenizer)

    with mock.patch.object(Pattern, "event", write):
        yield texts


async def both(
    front: Front, route: Route, body: dict[str, Any], steps: Sequence[Step | Exception]
) -> tuple[Said, Said]:
    """The stream by the short way, and by vLLM's own generator alone."""
    with watched() as texts:
        short = await say(front, route, body, steps)
    assert texts, "the short way was not taken"
    assert short.offers
    with mock.patch("jubako.engine.vllm.adapter._is_plain", return_value=False):
        own = await say(front, route, body, steps)
    return short, own


def one_by_one(tokens: Sequence[int], end: tuple[str, int | str | None] = ("length", None)) -> list[Step]:
    """Each token a step of its own; the last one ends the stream."""
    return [([token], end if at == len(tokens) - 1 else None) for at, token in enumerate(tokens)]


CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me."}]}
TEXT: dict[str, Any] = {"prompt": "Once"}
ROUTES = [pytest.param(Route.CHAT, CHAT, id="chat"), pytest.param(Route.COMPLETIONS, TEXT, id="completion")]
USAGE = {"stream_options": {"include_usage": True}}
RUNNING = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


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
        (Route.CHAT, CHAT | {"logprobs": True}),
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


WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}},
}
CALLS = '<tool_call>\n{"name": "weather", "arguments": {"place": "Kyōto"}}\n</tool_call>'


@pytest.mark.parametrize(
    "text",
    [
        STORY,
        CALLS,
        f"Let me see. {CALLS}",
        f"Let me see. {CALLS}\n{CALLS}",
        "Less < than, <tool_ no call, <tool_call> and never an end",
        "A call that is none: <tool_call>[1, 2</tool_call> after",
    ],
    ids=["no call", "a call", "text and a call", "two calls", "no end", "no call inside"],
)
@pytest.mark.parametrize("choice", ["auto", "none", "nothing on offer"])
@pytest.mark.parametrize("end", [("stop", None), ("length", None)], ids=str)
async def test_streams_that_are_parsed_are_the_same(
    parsing: Front, text: str, choice: str, end: tuple[str, int | str | None]
) -> None:
    """Text of the parser's is written the short way; tool calls, and what it holds back, as vLLM has them."""
    body = CHAT | USAGE | ({} if choice == "nothing on offer" else {"tools": [WEATHER], "tool_choice": choice})
    steps = one_by_one(encode(parsing.engine, text), end)
    with watched() as texts:
        short = await say(parsing, Route.CHAT, body, steps)
    with mock.patch("jubako.engine.vllm.adapter._is_plain", return_value=False):
        own = await say(parsing, Route.CHAT, body, steps)
    assert short.events == own.events
    assert short.call.usage.generated_tokens == own.call.usage.generated_tokens == len(steps)
    assert texts or text == CALLS, "the short way was not taken"
    called = choice == "auto" and CALLS in text
    assert called == any(b'"tool_calls"' in event for event in short.events)


async def test_an_event_that_ends_the_reasoning_is_not_repeated(model_folder: Path) -> None:
    """It has text beside the reasoning when one step brings both; the events after it have their text alone."""
    engine, core = await front_end(
        model_folder,
        served={"reasoning_parser": "qwen3", "tool_call_parser": "hermes", "enable_auto_tool_choice": True},
    )
    thinking = Front(engine, core)
    tokens = encode(engine, "<think>hm</think>The answer is six, seven.")
    steps: list[Step] = [(tokens[:-6], None), *one_by_one(tokens[-6:])]
    try:
        short, own = await both(thinking, Route.CHAT, CHAT | USAGE | {"tools": [WEATHER]}, steps)
    finally:
        await engine.close(0)
    assert short.events == own.events
    assert sum(b'"reasoning":"hm"' in event for event in short.events) == 1


async def test_a_parser_that_fails_fails_as_it_would_in_vllm(parsing: Front) -> None:
    """The same refusal, after the same events."""
    from vllm.parser.abstract_parser import DelegatingParser

    parse = DelegatingParser.parse_delta

    def fail(parser: Any, delta_text: str, *arguments: Any, **options: Any) -> Any:
        if "noodles" in delta_text:
            raise KeyError("of the parser")
        return parse(parser, delta_text, *arguments, **options)

    steps = one_by_one(encode(parsing.engine, STORY))
    with mock.patch.object(DelegatingParser, "parse_delta", fail):
        short = await say(parsing, Route.CHAT, CHAT, steps)
        with mock.patch("jubako.engine.vllm.adapter._is_plain", return_value=False):
            own = await say(parsing, Route.CHAT, CHAT, steps)
    assert short.error is not None
    assert (type(short.error), str(short.error)) == (type(own.error), str(own.error))
    assert short.events == own.events


async def test_a_parser_has_each_token_once(parsing: Front) -> None:
    """Those that it had on the short way are not given to it again with the last output."""
    from vllm.parser.abstract_parser import DelegatingParser

    parse = DelegatingParser.parse_delta
    given: list[tuple[str, list[int], bool]] = []

    def note(parser: Any, **delta: Any) -> Any:
        given.append((delta["delta_text"], list(delta["delta_token_ids"]), delta["finished"]))
        return parse(parser, **delta)

    steps = one_by_one(encode(parsing.engine, f"Let me see. {CALLS} And < that is all."))
    body = CHAT | {"tools": [WEATHER], "tool_choice": "auto"}
    with mock.patch.object(DelegatingParser, "parse_delta", note):
        await both(parsing, Route.CHAT, body, steps)
    assert given[: len(steps)] == given[len(steps) :]


EVENT = 'data: {"id":"x","model":NAME,"choices":[{"index":0,"delta":{"content":"a\\"b"},"finish_reason":null}]}\n\n'


@pytest.mark.parametrize("name", ["plain", '"choices":[{"index":0,"delta":{"content":"', "\\", "日本"])
async def test_the_text_is_found_whatever_a_model_is_called(name: str) -> None:
    """Only its place counts."""
    event = EVENT.replace("NAME", json.dumps(name)).replace('0,"delta":{"content":"a', '12,"delta":{"content":"a')
    found = Pattern.of(event, Route.CHAT)
    assert found is not None
    index, pattern = found
    assert (index, pattern.event('a"b', None)) == (12, event.encode())


@pytest.mark.parametrize(
    "event",
    [
        EVENT.replace('"finish_reason":null', '"finish_reason":"stop"'),
        EVENT.replace("}]}", '}],"usage":{"prompt_tokens":1}}'),
        EVENT.replace('"content":"a\\"b"', '"content":null'),
        EVENT.replace('"content"', '"role":"assistant","content"'),
        EVENT.replace('"content":"a\\"b"', '"content":"a","reasoning":"b"'),
        EVENT.replace('"content":"a\\"b"', '"content":"a","tool_calls":[{"index":0}]'),
        'data: {"error":{"message":"no"}}\n\n',
        "data: [DONE]\n\n",
    ],
)
async def test_other_events_are_no_pattern(event: str) -> None:
    """They are not repeated."""
    assert Pattern.of(event, Route.CHAT) is None


async def test_half_a_character_does_not_raise() -> None:
    """It would, where the tokens of every stream are dealt with."""
    found = Pattern.of(EVENT.replace("NAME", '"x"'), Route.CHAT)
    assert found is not None
    assert b'"a?b"' in found[1].event("a\ud83db", None)
