"""What is asked of both servers, and what is promised of the ratio between them. Knows not how it is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ALIAS = "bench"
_STREAM = {"stream": True, "stream_options": {"include_usage": True}}
_TOKENS = {"max_tokens": 128, "ignore_eos": True, "temperature": 0}
_MESSAGES = [{"role": "user", "content": "Request NUMBER: tell me a story of a noodle shop and its three cats."}]
_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}},
    },
}
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "cats": {"type": "array", "items": {"type": "string"}}},
    "required": ["name", "cats"],
}
_LONG = "Request NUMBER. " + "The noodle shop at the corner opens at six and its three cats wait at the door. " * 75

TOKEN_CPU, REQUEST_CPU, RATE = "cpu_us_per_token", "cpu_ms_per_request", "tokens_per_second"
FIRST, PACE = "ttft_p50_ms", "tpot_p50_ms"


@dataclass(frozen=True)
class Scenario:
    """One load. `promises` are ratios of Jubako to vLLM's own server: at most, but at least for tokens a second."""

    name: str
    what: str
    body: Mapping[str, Any]
    connections: int
    requests: int
    """Of each connection, one after the other."""
    path: str = CHAT
    promises: Mapping[str, float] = field(default_factory=dict)


def _chat(**changes: Any) -> dict[str, Any]:
    return {"model": ALIAS, "messages": _MESSAGES, **_TOKENS, **_STREAM, **changes}


_HEADLINE = {TOKEN_CPU: 0.50, RATE: 1.4}
_WHOLE = {name: value for name, value in _chat().items() if name not in _STREAM}
_TEXT = {name: value for name, value in _chat(prompt="Request NUMBER: once upon a time").items() if name != "messages"}

NARROW = (
    Scenario("chat-1", "streamed chat, 1 stream", _chat(), 1, 12),
    Scenario("chat-16", "streamed chat, 16 streams", _chat(), 16, 5),
    Scenario("chat-64", "streamed chat, 64 streams", _chat(), 64, 3, promises=_HEADLINE),
    Scenario("chat-256", "streamed chat, 256 streams", _chat(max_tokens=64), 256, 2, promises=_HEADLINE),
    Scenario("text-64", "streamed completions, 64 streams", _TEXT, 64, 2, COMPLETIONS),
    Scenario("whole-64", "whole replies, 64 at a time", _WHOLE, 64, 2, promises={REQUEST_CPU: 0.80}),
    Scenario("short-16", "replies of 4 tokens, 16 at a time", _chat(max_tokens=4), 16, 40),
    Scenario("long-8", "prompts of 1,300 tokens, 8 streams of 32 tokens", _chat(
        messages=[{"role": "user", "content": _LONG}], max_tokens=32), 8, 8),
    Scenario("schema-16", "a JSON schema, 16 streams", _chat(response_format={
        "type": "json_schema", "json_schema": {"name": "shop", "schema": _SCHEMA}}), 16, 3),
    Scenario("logprobs-16", "5 log-probabilities a token, 16 streams", _chat(logprobs=True, top_logprobs=5), 16, 2,
             promises={TOKEN_CPU: 0.80}),
    Scenario("choices-16", "4 choices a request, 16 streams", _chat(n=4, max_tokens=64, temperature=1), 16, 2,
             promises={TOKEN_CPU: 0.80}),
)  # fmt: skip
"""On a corner of the demo model, so that the process in front of the engine is the limit."""
PARSED = (
    Scenario("tools-16", "tools on offer, 16 streams", _chat(tools=[_TOOL]), 16, 2, promises={TOKEN_CPU: 0.80}),
    Scenario("untold-64", "a parser of tools, none on offer, 64 streams", _chat(), 64, 2, promises={TOKEN_CPU: 0.80}),
)
"""The same, with a parser of tool calls."""
REAL = (
    Scenario("real-1", "streamed chat, 1 stream, the whole demo model", _chat(max_tokens=64), 1, 3,
             promises={FIRST: 1.02, PACE: 1.02}),
)  # fmt: skip
MODELS: Mapping[str, tuple[Scenario, ...]] = {"narrow": NARROW, "narrow, parser": PARSED, "whole": REAL}
"""What both servers are started with, for which scenarios."""
PARSER = "hermes"
CHECKED = "chat-64"
CHECKED_AT_MOST = 0.60
"""What `make bench-check` lets through: the promise, and room for a machine that is doing something else as well."""
