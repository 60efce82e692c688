"""What a checked request demands of the engine, and its body as the engine is given it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jubako.boundary import fields, limits
from jubako.boundary.fields import Whole
from jubako.errors import InvalidRequest
from jubako.vocabulary import Route
from tests.boundary_limits import DEFAULT, FUNCTION, check, limited
from tests.hostile import says


@pytest.mark.parametrize("value", [True, 1, 1.0, "1"])
def test_numbers_are_read_once_as_the_engine_reads_them(value: object) -> None:
    """What it would take for one is one from here on."""
    body, demand = check(Route.COMPLETIONS, n=value, max_tokens=value)
    assert (body["n"], body["max_tokens"]) == (1, 1)
    assert type(body["n"]) is int
    assert (demand.choices, demand.output_tokens) == (1, 1)


@pytest.mark.parametrize("value", [1.5, "x", "1" * 40, [1], {"a": 1}, 10**400, -(10**400), 1e300, "nan"])
@pytest.mark.parametrize("name", [name for name, spec in fields.CHAT.open.items() if isinstance(spec, Whole)])
def test_what_is_no_number_is_refused(name: str, value: object) -> None:
    """By the field's name, without the value."""
    with pytest.raises(InvalidRequest) as raised:
        check(Route.CHAT, **{name: value})
    assert raised.value.param == name
    assert len(raised.value.message) < 100


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS])
def test_null_is_as_if_it_were_not_sent(route: Route) -> None:
    """For every field that may be sent."""
    kept = {name: None for name in fields.ROUTES[route].open if name not in {"messages", "prompt"}}
    _, demand = check(route, **kept)
    assert demand == check(route)[1]


def test_a_chat_that_asks_for_no_number_is_bounded_by_the_default() -> None:
    """The field is left unset, so that the engine still knows that the context is the other bound."""
    body, demand = check(Route.CHAT, limited(default_output_tokens=77))
    assert demand.output_tokens == 77
    assert "max_tokens" not in body


def test_a_default_above_the_limit_is_the_limit() -> None:
    """A policy may lower one and not the other."""
    assert check(Route.CHAT, limited(default_output_tokens=77, output_tokens=5))[1].output_tokens == 5
    assert check(Route.COMPLETIONS, limited(output_tokens=5))[1].output_tokens == 5


@pytest.mark.parametrize(
    ("asked", "bound"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"max_tokens": 7, "max_completion_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": None}, 5),
    ],
)
def test_the_newer_name_of_the_bound_goes_first(asked: dict[str, Any], bound: int) -> None:
    """As in vLLM."""
    assert check(Route.CHAT, **asked)[1].output_tokens == bound


def test_a_completion_has_sixteen_tokens_or_one_for_a_score() -> None:
    """OpenAI's default; a prompt that is only scored costs the engine one token."""
    assert check(Route.COMPLETIONS)[1].output_tokens == 16
    assert check(Route.COMPLETIONS, echo=True, max_tokens=0)[1].output_tokens == 1


def test_a_demand_counts_every_sequence() -> None:
    """Prompts times choices."""
    _, demand = check(Route.COMPLETIONS, prompt=[[1, 2], [3]], n=3, max_tokens=5)
    assert (demand.prompts, demand.choices, demand.prompt_tokens, demand.sequences) == (2, 3, 3, 6)
    assert demand.tokens == 3 + 6 * 5


def test_prompt_tokens_are_estimated_from_bytes() -> None:
    """Four bytes a token, and some for each message."""
    assert check(Route.COMPLETIONS, prompt="x" * 401)[1].prompt_tokens == 101
    assert check(Route.COMPLETIONS, prompt="é" * 400)[1].prompt_tokens == 200
    _, demand = check(Route.CHAT, messages=says("x" * 396) * 2)
    assert demand.prompt_tokens == 2 * (100 + limits.MESSAGE_TOKENS)
    assert check(Route.CHAT, tools=[FUNCTION])[1].prompt_tokens > check(Route.CHAT)[1].prompt_tokens


@pytest.mark.parametrize(
    ("body", "grammar"),
    [
        ({}, False),
        ({"response_format": {"type": "text"}}, False),
        ({"response_format": {"type": "json_object"}}, True),
        ({"structured_outputs": {"regex": "a"}}, True),
        ({"tools": [FUNCTION]}, True),
        ({"tools": [FUNCTION], "tool_choice": "none"}, False),
        ({"tools": [FUNCTION], "tool_choice": "required"}, True),
    ],
)
def test_a_demand_says_whether_there_is_a_grammar(body: dict[str, Any], *, grammar: bool) -> None:
    """So that it is looked at before it reaches the engine."""
    assert check(Route.CHAT, **body)[1].grammar is grammar


def test_truncation_names_its_side() -> None:
    """Without one, vLLM tokenizes all of a text that it is about to cut."""
    assert check(Route.CHAT, truncate_prompt_tokens=5)[0]["truncation_side"] == "left"
    assert check(Route.CHAT, truncate_prompt_tokens=5, truncation_side="right")[0]["truncation_side"] == "right"
    assert "truncation_side" not in check(Route.CHAT)[0]


def test_best_of_is_n_or_nothing() -> None:
    """The engine has none; as many as are returned is no choice."""
    for body in ({"best_of": 2, "n": 2}, {"best_of": None, "n": 2}, {"best_of": 1}):
        assert "best_of" not in check(Route.COMPLETIONS, **body)[0]
    with pytest.raises(InvalidRequest):
        check(Route.COMPLETIONS, best_of=3, n=2)


def test_what_a_client_sends_back_of_a_reply_is_taken() -> None:
    """Assistants' messages come as they were received."""
    call = {"id": "c", "type": "function", "index": 0, "function": {"name": "x", "arguments": "{}"}}
    sent: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None}
    sent |= {"function_call": None, "reasoning": None, "tool_calls": [call]}
    body, _ = check(Route.CHAT, messages=[*says("x"), sent])
    kept = body["messages"][1]
    assert kept["tool_calls"][0]["function"] == call["function"]
    assert not {"annotations", "audio", "function_call"} & kept.keys()


def test_a_body_is_not_changed_in_place() -> None:
    """Who checks twice finds the same."""
    body = {"messages": says([{"type": "text", "text": "x", "cache_control": {}}]), "user": "x", "n": "1"}
    before = json.dumps(body)
    first = limits.check(Route.CHAT, body, DEFAULT, media_salt="a")
    assert json.dumps(body) == before
    assert first == limits.check(Route.CHAT, body, DEFAULT, media_salt="a")
