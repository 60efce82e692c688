"""Which events of vLLM's are a pattern for the next ones, and where their text is."""

from __future__ import annotations

import json

import pytest

from jubako.engine.vllm.deltas import Pattern
from jubako.vocabulary import Route

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
