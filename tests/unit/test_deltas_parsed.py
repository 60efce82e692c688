"""Streams that vLLM parses for tool calls and reasoning are the same by the short way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import pytest_asyncio

from jubako.vocabulary import Route
from tests.scripted_core import encode, front_end
from tests.short_way import CHAT, STORY, USAGE, Front, Step, both, one_by_one, say, watched

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}},
}
CALLS = '<tool_call>\n{"name": "weather", "arguments": {"place": "Kyōto"}}\n</tool_call>'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parsing(model_folder: Path) -> AsyncIterator[Front]:
    """One that reads tool calls."""
    served = {"tool_call_parser": "hermes", "enable_auto_tool_choice": True}
    engine, core = await front_end(model_folder, served=served)
    yield Front(engine, core)
    await engine.close(0)


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
