"""The smoke gate: what it asks, and what it says of an engine that answers wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from jubako import smoke
from jubako.errors import InvalidRequest
from jubako.vocabulary import Call, Document, Reply, Route
from tests.boundary_limits import configured
from tests.scripted_engine import DONE, ScriptedEngine, raises, says, streams


@dataclass(frozen=True)
class Prompt:
    """A smoke prompt."""

    name: str = "greeting"
    messages: list[dict[str, str]] | None = None
    prompt: str | None = "hello"
    max_tokens: int = 4
    expected: str = " world"


async def echo(call: Call) -> Reply:
    """Each route's own shape of an answer."""
    text: Any = {"message": {"content": " world"}} if call.route is Route.CHAT else {"text": " world"}
    return Document(json.dumps({"choices": [text]}).encode())


async def test_right_answers_pass() -> None:
    """Every prompt is asked greedily, of the alias, on its own route."""
    engine = ScriptedEngine(echo)
    talk = [{"role": "user", "content": "hello"}]
    await smoke.run(engine, [Prompt(), Prompt("chat", talk, None)], "the-alias", configured())
    assert [call.route for call in engine.calls] == [Route.COMPLETIONS, Route.CHAT]
    assert [call.body["model"] for call in engine.calls] == ["the-alias"] * 2
    assert all(call.body["temperature"] == 0 and call.body["max_tokens"] == 4 for call in engine.calls)
    assert engine.calls[0].body["prompt"] == "hello"
    assert engine.calls[1].body["messages"] == talk
    assert len({call.request_id for call in engine.calls}) == 2


async def test_all_wrong_answers_are_told() -> None:
    """With the prompt's name, what was expected and what came."""
    engine = ScriptedEngine(says({"choices": [{"text": " moon"}]}))
    with pytest.raises(smoke.SmokeFailure) as raised:
        await smoke.run(engine, [Prompt("one"), Prompt("two"), Prompt("right", expected=" moon")], "x", configured())
    lines = str(raised.value).splitlines()
    assert lines == [f"smoke prompt {name!r}: expected ' world', found ' moon'" for name in ("one", "two")]


@pytest.mark.parametrize(
    ("script", "found"),
    [(raises(InvalidRequest("bad", code="invalid_value")), "invalid_value: bad"), (streams(DONE), "a stream")],
)
async def test_no_answer_is_a_wrong_one(script: Any, found: str) -> None:
    """An error or a stream is told as such."""
    with pytest.raises(smoke.SmokeFailure, match=found):
        await smoke.run(ScriptedEngine(script), [Prompt()], "x", configured())
