"""Plain steps change nothing that anybody sees: whole replies, what is counted, and what vLLM's metrics say of them."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from jubako.engine.vllm import plain
from jubako.vocabulary import Document, Route
from tests.caller import SECONDS, call_of
from tests.scripted_core import ScriptedCore, encode, front_end

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

STORY = 'Once "upon" a time,\nthere was a café with 🍜 noodles \\ and \u2028 a tab\t<|tool|> </s> 日本語.'
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me."}]}
METRICS = (
    "vllm:generation_tokens_total",
    "vllm:inter_token_latency_seconds_count",
    "vllm:request_generation_tokens_sum",
    "vllm:request_decode_time_seconds_count",
    "vllm:time_to_first_token_seconds_count",
)
NUMBERS = itertools.count()
Front = tuple[Any, ScriptedCore]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(model_folder: Path) -> AsyncIterator[Front]:
    """One front end for all tests of the module."""
    engine, core = await front_end(model_folder)
    yield engine, core
    await engine.close(0)


def counts() -> dict[str, float]:
    """vLLM's own numbers, added up over their labels."""
    found = dict.fromkeys(METRICS, 0.0)
    for family in REGISTRY.collect():
        for sample in family.samples:
            if sample.name in found:
                found[sample.name] += sample.value
    return found


async def whole(front: Front, body: dict[str, Any], choices: int) -> tuple[dict[str, Any], int, dict[str, float]]:
    """A whole reply of so many choices, one token a step; what was counted; what vLLM's metrics grew by."""
    engine, core = front
    tokens, before = encode(engine, STORY), counts()
    call = call_of(Route.CHAT, CHAT | {"max_tokens": 200, "n": choices, "temperature": 1} | body)
    demand = replace(call.demand, choices=choices, output_tokens=200)
    call = replace(call, request_id=f"id-{next(NUMBERS)}", demand=demand)
    asked = asyncio.create_task(engine.answer(call))
    async with asyncio.timeout(SECONDS):
        while len(core.requests) < choices:
            await asyncio.sleep(0)
        names = list(core.requests)
        for at, token in enumerate(tokens):
            ends = dict.fromkeys(names, ("length", None)) if at == len(tokens) - 1 else {}
            core.step({name: [token] for name in names}, finish=ends)
        reply = await asked
        while not core.idle:
            await asyncio.sleep(0)
    core.requests.clear()
    assert isinstance(reply, Document)
    after = counts()
    said = json.loads(reply.body)
    return (
        {name: value for name, value in said.items() if name not in {"id", "created"}},
        call.usage.generated_tokens,
        {name: after[name] - before[name] for name in METRICS},
    )


@pytest.mark.parametrize("choices", [1, 3])
@pytest.mark.parametrize("body", [{}, {"stop": ["noodles"]}, {"skip_special_tokens": False}], ids=str)
async def test_a_whole_reply_is_the_same(front: Front, body: dict[str, Any], choices: int) -> None:
    """Text of every kind, and each number; what has stop strings to look for is left to vLLM."""
    with mock.patch.object(plain, "is_plain", side_effect=plain.is_plain) as asked:
        short = await whole(front, body, choices)
    assert asked.called == ("stop" not in body)
    with mock.patch.object(plain, "is_plain", return_value=False):
        own = await whole(front, body, choices)
    assert short == own
    assert short[2]["vllm:generation_tokens_total"] >= short[1] > 0


async def test_an_output_with_anything_else_is_not_plain() -> None:
    """Whatever vLLM comes to tell beside the tokens is its own to deal with: no field goes unseen."""
    from vllm.v1.engine import EngineCoreOutput

    fields = [name for name in EngineCoreOutput.__struct_fields__ if name not in {"request_id", "new_token_ids"}]
    told = [name for name in fields if not plain.is_plain(EngineCoreOutput("id", [1], **{name: 1}))]
    assert told == fields
    assert plain.is_plain(EngineCoreOutput("id", [1]))
    assert not plain.is_plain(EngineCoreOutput("id", [1, 2]))
    assert not plain.is_plain(EngineCoreOutput("id", []))
