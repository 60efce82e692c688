"""What a request may turn: answers, seeds, logprobs, stops, lengths, tools and schemas."""

from __future__ import annotations

import copy
import json
import math
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.contract.corpus import BASE, NAMED_TOOL, TOOLS, says

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

FRANCE = says("What is the capital of France?")
GREEDY: dict[str, Any] = {"model": BASE, "temperature": 0, "max_tokens": 16}
WARM: dict[str, Any] = {"model": BASE, "temperature": 1.0, "max_tokens": 16}


class Person(BaseModel):
    """What the model is made to say."""

    kind: Literal["person", "company"]
    adult: bool


def test_n_gives_so_many_answers(client: Any) -> None:
    """Numbered, and warm enough to differ."""
    reply = client.chat.completions.create(messages=says("Tell me a story."), n=3, seed=5, **WARM)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in reply.choices}) > 1


def test_n_is_streamed_by_index(client: Any) -> None:
    """Each answer ends once."""
    chunks = client.chat.completions.create(messages=says("Tell me a story."), n=2, seed=5, stream=True, **WARM)
    ends = [choice.index for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert sorted(ends) == [0, 1]


def test_a_seed_repeats_an_answer(client: Any) -> None:
    """And another seed gives another."""

    def told(seed: int) -> str:
        return str(client.completions.create(prompt="Once upon a time", seed=seed, **WARM).choices[0].text)

    assert told(1) == told(1)
    assert len({told(seed) for seed in range(1, 5)}) > 1


def test_logprobs_come_with_every_token(client: Any) -> None:
    """As many alternatives as asked for, the greedy token first among them."""
    reply = client.chat.completions.create(messages=FRANCE, logprobs=True, top_logprobs=3, **GREEDY)
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert reply.usage is not None
    assert len(logprobs.content) == reply.usage.completion_tokens
    for token in logprobs.content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == max(top.logprob for top in token.top_logprobs)
        assert math.exp(token.logprob) <= 1


def test_logprobs_of_a_completion_have_its_shape(client: Any) -> None:
    """Tokens, their logprobs and the alternatives, side by side."""
    logprobs = client.completions.create(prompt="One, two,", logprobs=2, **GREEDY).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 16


def test_as_many_stop_strings_as_the_limit_says_are_taken(client: Any) -> None:
    """The engine's own server takes four; here `limits.stops` decides alone."""
    stops = [f"never {number}" for number in range(15)]
    reply = client.chat.completions.create(messages=FRANCE, stop=[*stops, "ce is Par"], **GREEDY)
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("The capital of Fran", "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_answer_before_it(client: Any, *, stream: bool) -> None:
    """Even when the string is split over several tokens."""
    options = {"messages": FRANCE, "stop": ["ce is Par"], **GREEDY}
    if stream:
        choices = [chunk.choices[0] for chunk in client.chat.completions.create(stream=True, **options)]
        text, finish = "".join(one.delta.content or "" for one in choices), choices[-1].finish_reason
    else:
        choice = client.chat.completions.create(**options).choices[0]
        text, finish = choice.message.content or "", choice.finish_reason
    assert (text, finish) == ("The capital of Fran", "stop")


def test_echo_repeats_the_prompt(client: Any) -> None:
    """Before the answer, and not in the usage of it."""
    reply = client.completions.create(prompt="One, two,", echo=True, **GREEDY)
    assert reply.choices[0].text.startswith("One, two,")
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 16


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_most_tokens_are_kept_to(client: Any, name: str) -> None:
    """By either name, and the finish says so."""
    options: dict[str, Any] = {"model": BASE, "temperature": 0, name: 3}
    reply = client.chat.completions.create(messages=FRANCE, **options)
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 3


STRICT_TOOLS: Any = copy.deepcopy(TOOLS)
STRICT_TOOLS["tools"][0]["function"]["strict"] = True


@pytest.mark.parametrize("choice", ["required", NAMED_TOOL], ids=["required", "named"])
def test_a_strict_tool_that_must_be_called_is_called_right(client: Any, choice: Any) -> None:
    """Its arguments are JSON with the keys of its schema."""
    reply = client.chat.completions.create(model=BASE, temperature=0, tool_choice=choice, **STRICT_TOOLS)
    calls = reply.choices[0].message.tool_calls
    assert calls
    assert calls[0].type == "function"
    assert calls[0].function.name == "weather"
    arguments = json.loads(calls[0].function.arguments)
    assert arguments["city"] in {"Paris", "Rome"}
    assert arguments.keys() == {"city"}


@pytest.mark.parametrize("choice", ["required", NAMED_TOOL], ids=["required", "named"])
@pytest.mark.parametrize("tools", [TOOLS, STRICT_TOOLS], ids=["loose", "strict"])
def test_a_streamed_tool_call_is_that_of_the_whole_reply(client: Any, choice: Any, tools: Any) -> None:
    """Its parts add up to the same name and arguments, under one id."""
    whole = client.chat.completions.create(model=BASE, temperature=0, tool_choice=choice, **tools)
    stream = client.chat.completions.create(model=BASE, temperature=0, tool_choice=choice, stream=True, **tools)
    parts = [part for chunk in stream for one in chunk.choices for part in one.delta.tool_calls or []]
    first = (whole.choices[0].message.tool_calls or [])[0]
    assert first.type == "function"
    mine = [part for part in parts if part.index == 0]
    assert len({part.id for part in mine if part.id}) == 1
    assert "".join(part.function.name or "" for part in mine if part.function) == first.function.name
    streamed = "".join(part.function.arguments or "" for part in mine if part.function)
    assert json.loads(streamed) == json.loads(first.function.arguments)


def test_a_schema_is_kept_and_parsed_by_the_client(client: Any) -> None:
    """`parse` gives an instance of the class that was asked for."""
    reply = client.chat.completions.parse(
        model=BASE, temperature=0, max_tokens=40, messages=says("Describe a person."), response_format=Person
    )
    assert isinstance(reply.choices[0].message.parsed, Person)


async def test_a_streamed_schema_is_parsed_by_the_client(async_client: Any) -> None:
    """The same through the client's own accumulation of the stream."""
    async with async_client.chat.completions.stream(
        model=BASE, temperature=0, max_tokens=40, messages=says("Describe a person."), response_format=Person
    ) as stream:
        final = await stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Person)


def test_a_strict_tool_is_parsed_by_the_client(client: Any) -> None:
    """`parse` reads the arguments of a tool that says it is strict."""
    reply = client.chat.completions.parse(model=BASE, temperature=0, tool_choice="required", **STRICT_TOOLS)
    calls = reply.choices[0].message.tool_calls
    assert calls
    assert calls[0].function.parsed_arguments in ({"city": "Paris"}, {"city": "Rome"})
