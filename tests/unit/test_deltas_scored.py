"""The short way of a token whose log-probability is told says what vLLM's own generator says, figure by figure."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from jubako.vocabulary import Route
from tests.scripted_core import encode, front_end
from tests.short_way import CHAT, RUNNING, STORY, USAGE, Front, Said, both, one_by_one

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
SCORED = CHAT | {"logprobs": True}
FIGURES = (-0.5, 0.0, -0.0, -1e-6, -3.2e-5, -1e-4, -12.0, -1234.5, -9999.0, -1e9, -np.inf, -1.1920929e-07)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(model_folder: Path) -> AsyncIterator[Front]:
    """One front end for all tests of the module."""
    engine, core = await front_end(model_folder)
    yield Front(engine, core)
    await engine.close(0)


class Scores:
    """The sampled token first, then alternatives of every kind, with figures of every size."""

    def __init__(self, front: Front, *, alternatives: int, figures: Sequence[float] = FIGURES) -> None:
        pieces = encode(front.engine, STORY)
        self._others = itertools.cycle([*sorted(set(pieces)), 0, 1, 2])
        self._figures = itertools.cycle(figures)
        self._alternatives = alternatives

    def __call__(self, tokens: Sequence[int]) -> Any:
        """As the engine's worker tells them."""
        from vllm.v1.outputs import LogprobsLists

        width = 1 + self._alternatives
        ids = [[token, *(next(self._others) for _ in range(self._alternatives))] for token in tokens]
        values = [[next(self._figures) for _ in range(width)] for _ in tokens]
        ranks = [1 for _ in tokens]
        return LogprobsLists(np.array(ids), np.array(values, dtype=np.float32), np.array(ranks), None)


@pytest.mark.parametrize("top", [None, 0, 2, 5])
@pytest.mark.parametrize("options", [{}, USAGE, RUNNING], ids=["plain", "usage", "running usage"])
@pytest.mark.parametrize("end", [("length", None), ("stop", 2), ("abort", None)], ids=str)
async def test_a_scored_stream_is_the_same(
    front: Front, top: int | None, options: dict[str, Any], end: tuple[str, int | str | None]
) -> None:
    """Characters that take several tokens, alternatives that are the sampled token itself, figures with exponents."""
    tokens = encode(front.engine, STORY)
    body = SCORED | options | ({} if top is None else {"top_logprobs": top})
    short, own = await both_scored(front, body, one_by_one(tokens, end), alternatives=top or 0)
    assert short.events == own.events
    entries = [entry for event in short.events for entry in scored(event)]
    assert len(entries) == len(tokens)
    assert max(len(entry["top_logprobs"]) for entry in entries) == (top or 0)
    assert short.call.usage.generated_tokens == len(tokens)


async def both_scored(front: Front, body: dict[str, Any], steps: Sequence[Any], **scores: Any) -> tuple[Said, Said]:
    """As `both`, with the same figures for either way."""
    said = Scores(front, **scores)
    figures = itertools.cycle([said(tokens) for tokens, _ in steps])
    return await both(front, Route.CHAT, body, steps, lambda _: next(figures))


def scored(event: bytes) -> list[dict[str, Any]]:
    """What an event tells of its tokens."""
    if b"[DONE]" in event:
        return []
    choices = json.loads(event.removeprefix(b"data: "))["choices"]
    told = choices[0].get("logprobs") if choices else None
    return [] if told is None else list(told["content"])


async def test_scored_text_held_back_for_a_stop_string_is_the_same(front: Front) -> None:
    """Its tokens are told of as they come, its text is not."""
    tokens = encode(front.engine, "One two three four five, six seven.")
    body = SCORED | RUNNING | {"stop": ["five, seven", "six"], "top_logprobs": 1}
    short, own = await both_scored(front, body, one_by_one(tokens), alternatives=1)
    assert short.events == own.events


async def test_steps_of_several_scored_tokens_are_the_same(front: Front) -> None:
    """As with an engine that guesses ahead."""
    tokens = encode(front.engine, STORY)
    last = len(tokens) - 1
    steps = [(tokens[at : at + 3], ("length", None) if at + 3 > last else None) for at in range(0, len(tokens), 3)]
    short, own = await both_scored(front, SCORED | RUNNING | {"top_logprobs": 2}, steps, alternatives=2)
    assert short.events == own.events


async def test_a_figure_that_is_none_is_vllm_s_to_write(front: Front) -> None:
    """The stream goes on the short way after it, and counts every token once."""
    tokens = encode(front.engine, STORY)[:12]
    figures = (-0.5, -0.25, float("nan"), -1.0, -2.0)
    body = SCORED | RUNNING | {"top_logprobs": 1}
    short, own = await both_scored(front, body, one_by_one(tokens), alternatives=1, figures=figures)
    assert short.events == own.events
