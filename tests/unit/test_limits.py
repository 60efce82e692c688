"""Each limit of a field: what is at it passes, what is one above is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from jubako.errors import InvalidRequest
from jubako.vocabulary import Route
from tests.boundary_limits import FUNCTION, check, limited
from tests.hostile import says


def schema(size: int) -> dict[str, Any]:
    """A schema of so many bytes as JSON."""
    return {"description": "x" * (size - len('{"description":""}'))}


BOUNDS: list[tuple[str, Route, dict[str, int], dict[str, Any], dict[str, Any], str, str]] = [
    # limit, route, limits, at the limit, one above, param, code
    ("messages", Route.CHAT, {"messages": 2}, {"messages": says("x") * 2}, {"messages": says("x") * 3}, "messages", ""),
    (
        "message characters",
        Route.CHAT,
        {"message_characters": 9},
        {"messages": says("x" * 5)},
        {"messages": says("é" * 6)},
        "messages.0",
        "context_length_exceeded",
    ),
    (
        "message characters in parts",
        Route.CHAT,
        {"message_characters": 9},
        {"messages": says([{"type": "text", "text": "xxx"}, "xx"])},
        {"messages": says([{"type": "text", "text": "xxx"}, "xxx"])},
        "messages.0",
        "context_length_exceeded",
    ),
    (
        "prompt characters in messages",
        Route.CHAT,
        {"prompt_characters": 20},
        {"messages": says("x" * 6) * 2},
        {"messages": [*says("x" * 6), *says("x" * 7)]},
        "messages",
        "context_length_exceeded",
    ),
    (
        "prompt characters with documents",
        Route.CHAT,
        {"prompt_characters": 20},
        {"documents": [{"text": "x" * 7}]},
        {"documents": [{"text": "x" * 8}]},
        "messages",
        "context_length_exceeded",
    ),
    (
        "prompt characters with template arguments",
        Route.CHAT,
        {"prompt_characters": 20},
        {"chat_template_kwargs": {"a": "x" * 10}},
        {"chat_template_kwargs": {"a": "x" * 11}},
        "messages",
        "context_length_exceeded",
    ),
    (
        "prompt characters in prompts",
        Route.COMPLETIONS,
        {"prompt_characters": 10},
        {"prompt": ["x" * 5] * 2},
        {"prompt": ["x" * 5, "x" * 6]},
        "prompt",
        "context_length_exceeded",
    ),
    (
        "prompt characters with a suffix for each prompt",
        Route.COMPLETIONS,
        {"prompt_characters": 10},
        {"prompt": ["x"] * 2, "suffix": "x" * 4},
        {"prompt": ["x"] * 2, "suffix": "x" * 5},
        "prompt",
        "context_length_exceeded",
    ),
    ("prompts", Route.COMPLETIONS, {"prompts": 2}, {"prompt": ["x"] * 2}, {"prompt": ["x"] * 3}, "prompt", ""),
    ("prompts of ids", Route.COMPLETIONS, {"prompts": 2}, {"prompt": [[1]] * 2}, {"prompt": [[1]] * 3}, "prompt", ""),
    (
        "prompt tokens",
        Route.COMPLETIONS,
        {"prompt_tokens": 3},
        {"prompt": [1] * 3},
        {"prompt": [1] * 4},
        "prompt",
        "context_length_exceeded",
    ),
    (
        "prompt tokens of one of many",
        Route.COMPLETIONS,
        {"prompt_tokens": 3},
        {"prompt": [[1], [1] * 3]},
        {"prompt": [[1], [1] * 4]},
        "prompt",
        "context_length_exceeded",
    ),
    ("choices", Route.CHAT, {"choices": 2}, {"n": 2}, {"n": 3}, "n", ""),
    (
        "choices of all prompts",
        Route.COMPLETIONS,
        {"sequences": 5},
        {"prompt": ["a", "b"], "n": 2},
        {"prompt": ["a", "b"], "n": 3},
        "n",
        "",
    ),
    (
        "log-probabilities of prompts",
        Route.COMPLETIONS,
        {},
        {"prompt": [1] * 1000, "prompt_logprobs": 20},
        {"prompt": [1] * 1001, "prompt_logprobs": 20},
        "prompt_logprobs",
        "",
    ),
    ("output tokens", Route.CHAT, {"output_tokens": 9}, {"max_tokens": 9}, {"max_tokens": 10}, "max_tokens", ""),
    (
        "output tokens of the newer name",
        Route.CHAT,
        {"output_tokens": 9},
        {"max_completion_tokens": 9},
        {"max_completion_tokens": 10, "max_tokens": 1},
        "max_completion_tokens",
        "",
    ),
    (
        "least tokens without a number",
        Route.COMPLETIONS,
        {},
        {"min_tokens": 16},
        {"min_tokens": 17},
        "min_tokens",
        "",
    ),
    (
        "logprobs",
        Route.CHAT,
        {"logprobs": 3},
        {"logprobs": True, "top_logprobs": 3},
        {"logprobs": True, "top_logprobs": 4},
        "top_logprobs",
        "",
    ),
    ("logprobs of a completion", Route.COMPLETIONS, {"logprobs": 3}, {"logprobs": 3}, {"logprobs": 4}, "logprobs", ""),
    (
        "logprobs of the prompt",
        Route.CHAT,
        {"logprobs": 3},
        {"prompt_logprobs": 3},
        {"prompt_logprobs": 4},
        "prompt_logprobs",
        "",
    ),
    ("stops", Route.CHAT, {"stops": 2}, {"stop": ["a", "b"]}, {"stop": ["a", "b", "c"]}, "stop", ""),
    ("stop characters", Route.CHAT, {"stop_characters": 2}, {"stop": "ab"}, {"stop": "abc"}, "stop", ""),
    ("tools", Route.CHAT, {"tools": 1}, {"tools": [FUNCTION]}, {"tools": [FUNCTION] * 2}, "tools", ""),
    (
        "schema bytes",
        Route.CHAT,
        {"schema_bytes": 40},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": schema(40)}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": schema(41)}}},
        "response_format.json_schema.schema",
        "",
    ),
    (
        "bytes of a tool's schema",
        Route.CHAT,
        {"schema_bytes": 40},
        {"tools": [{"type": "function", "function": {"name": "x", "parameters": schema(40)}}]},
        {"tools": [{"type": "function", "function": {"name": "x", "parameters": schema(41)}}]},
        "tools.0.function.parameters",
        "",
    ),
    (
        "bytes of a regular expression",
        Route.COMPLETIONS,
        {"schema_bytes": 4},
        {"structured_outputs": {"regex": "éé"}},
        {"structured_outputs": {"regex": "ééx"}},
        "structured_outputs.regex",
        "",
    ),
    (
        "bytes of a grammar",
        Route.CHAT,
        {"schema_bytes": 4},
        {"structured_outputs": {"grammar": "xxxx"}},
        {"structured_outputs": {"grammar": "xxxxx"}},
        "structured_outputs.grammar",
        "",
    ),
    (
        "choices of a reply",
        Route.CHAT,
        {"token_ids": 2},
        {"structured_outputs": {"choice": ["a", "b"]}},
        {"structured_outputs": {"choice": ["a", "b", "c"]}},
        "structured_outputs.choice",
        "",
    ),
    (
        "logit bias",
        Route.CHAT,
        {"logit_bias": 1},
        {"logit_bias": {"1": 1}},
        {"logit_bias": {"1": 1, "2": 1}},
        "logit_bias",
        "",
    ),
    (
        "token ids",
        Route.CHAT,
        {"token_ids": 2},
        {"stop_token_ids": [1, 2]},
        {"stop_token_ids": [1, 2, 3]},
        "stop_token_ids",
        "",
    ),
    ("bad words", Route.CHAT, {"token_ids": 2}, {"bad_words": ["a"] * 2}, {"bad_words": ["a"] * 3}, "bad_words", ""),
    ("allowed", Route.CHAT, {"token_ids": 1}, {"allowed_token_ids": [1]}, {"allowed_token_ids": [1, 2]}, "", ""),
]


@pytest.mark.parametrize(
    ("route", "changes", "at", "above", "param", "code"), [b[1:] for b in BOUNDS], ids=[b[0] for b in BOUNDS]
)
def test_each_limit_is_inclusive_and_names_its_field(  # noqa: PLR0917 - one row of the table
    route: Route, changes: dict[str, int], at: dict[str, Any], above: dict[str, Any], param: str, code: str
) -> None:
    """At it: accepted. One above: 400 with the field's name and a code."""
    limit = limited(**changes)
    check(route, limit, **at)
    with pytest.raises(InvalidRequest) as raised:
        check(route, limit, **above)
    assert raised.value.param == (param or next(iter(above)))
    assert raised.value.code == (code or "unsupported_value")
