"""What the sampler of a GPU cannot hold is refused before the engine has it: there it would end the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jubako.errors import InvalidRequest
from jubako.vocabulary import Call, Route, Stream
from tests.caller import call_of
from tests.scripted_core import front_end

pytestmark = pytest.mark.engine

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me."}], "max_tokens": 4}
TOO_MUCH: dict[str, dict[str, Any]] = {
    "stop_token_ids": {"min_tokens": 1, "stop_token_ids": list(range(200))},
    "bad_words": {"bad_words": [f"{number} {chr(0x4E00 + number) * 200}" for number in range(20)]},
    "logit_bias": {"logit_bias": {str(token): 1 for token in range(1025)}},
    "allowed_token_ids": {"allowed_token_ids": list(range(1025))},
}


async def first_of(engine: Any, call: Call) -> None:
    """Ask for a reply, and of a stream for its first event: there it says what is refused."""
    reply = await engine.answer(call)
    if isinstance(reply, Stream):
        await anext(reply.events)


@pytest.mark.parametrize("choices", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
async def test_more_than_the_sampler_holds_never_reaches_the_engine(
    model_folder: Path, *, stream: bool, choices: int
) -> None:
    """Whatever the limits of the boundary are; nothing of such a request is left behind."""
    engine, core = await front_end(model_folder)
    processor = engine._running.llm.output_processor
    came: list[Any] = []
    core.came = came.append
    try:
        for param, body in TOO_MUCH.items():
            call = call_of(Route.CHAT, CHAT | body | {"stream": stream, "n": choices, "temperature": 1})
            with pytest.raises(InvalidRequest, match="the engine takes at most") as refused:
                await first_of(engine, call)
            assert refused.value.param == param
            assert call.usage.prompt_tokens == 0
            assert (came, processor.request_states, processor.parent_requests) == ([], {}, {})
    finally:
        await engine.close(0)


def test_the_tables_are_those_of_vllm() -> None:
    """Its module has them; ours does not import what needs a GPU."""
    from vllm.v1.worker.gpu.sample import logit_bias

    from jubako.engine.vllm import sampler

    assert logit_bias.MAX_NUM_STOP_TOKEN_IDS == sampler.STOP_TOKENS
    assert logit_bias.MAX_NUM_ALLOWED_TOKEN_IDS == sampler.ALLOWED_TOKENS
    assert logit_bias.MAX_NUM_LOGIT_BIAS_TOKENS == sampler.BIASED_TOKENS


def test_as_much_as_the_sampler_holds_is_taken() -> None:
    """Also as many stop tokens as one likes, while none is kept out."""
    from vllm import SamplingParams

    from jubako.engine.vllm import sampler

    sampler.require_room(None)
    sampler.require_room(SamplingParams(min_tokens=1, max_tokens=4, stop_token_ids=list(range(128))))
    sampler.require_room(SamplingParams(stop_token_ids=list(range(1000)), logit_bias=dict.fromkeys(range(1024), 1.0)))
