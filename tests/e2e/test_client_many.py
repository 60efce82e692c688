"""Many callers at once."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.contract.corpus import ADAPTER, BASE, CHAT, says
from tests.engine_metrics import await_rest

if TYPE_CHECKING:
    from tests.project import Served

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

MANY = 16
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24}


def question(number: int) -> list[dict[str, Any]]:
    """A question unlike the others."""
    return says(f"What comes after {number * 7}?")


async def test_many_streams_at_once_each_end_right(jubako_server: Served) -> None:
    """Each is whole: events only, one finish, one usage, one end; the engine is at rest after them."""

    async def read(http: httpx.AsyncClient, number: int) -> list[str]:
        body = {"model": BASE, "messages": question(number), "stream": True, **GREEDY}
        body["stream_options"] = {"include_usage": True}
        async with http.stream("POST", CHAT, json=body) as reply:
            return [line async for line in reply.aiter_lines()]

    headers = {"authorization": f"Bearer {jubako_server.key}"}
    limits = httpx.Limits(max_connections=MANY)
    async with httpx.AsyncClient(base_url=jubako_server.url, headers=headers, timeout=300, limits=limits) as http:
        replies = await asyncio.gather(*(read(http, number) for number in range(MANY)))
    for lines in replies:
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert all(line == "" or line.startswith(("data: ", ":")) for line in lines)
        assert data[-1] == "[DONE]"
        chunks = [json.loads(line) for line in data[:-1]]
        assert sum(bool(one["finish_reason"]) for chunk in chunks for one in chunk["choices"]) == 1
        assert chunks[-1]["usage"]["completion_tokens"] >= 1
        assert len({chunk["id"] for chunk in chunks}) == 1
    await asyncio.to_thread(await_rest, jubako_server)


async def test_many_get_the_answers_that_one_gets(async_client: Any) -> None:
    """Nobody gets another's answer: the first words, which batching does not change, are those of a lone request."""

    async def told(number: int) -> str:
        reply = await async_client.chat.completions.create(model=BASE, messages=question(number), **GREEDY)
        return reply.choices[0].message.content or ""

    alone = [await told(number) for number in range(4)]
    together = await asyncio.gather(*(told(number) for number in range(MANY)))
    assert len(set(together)) > 1
    assert sum(one == other for one, other in zip(alone, together, strict=False)) >= 3


async def test_the_model_and_its_adapter_are_served_side_by_side(async_client: Any) -> None:
    """In one batch, and each answers as itself."""

    async def told(model: str) -> str:
        messages = says("What is the capital of France?")
        reply = await async_client.chat.completions.create(model=model, messages=messages, **GREEDY)
        return reply.choices[0].message.content or ""

    answers = await asyncio.gather(*(told(model) for model in (BASE, ADAPTER) * 4))
    assert set(answers[::2]).isdisjoint(answers[1::2])
    assert all("Paris" in answer for answer in answers[::2])
