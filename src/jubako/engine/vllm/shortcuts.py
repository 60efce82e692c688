"""Shorter ways around what vLLM does for each request or token, hooked into its objects once they are wired.

Each does what vLLM's own way does. Knows nothing of how an engine is started.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

import vllm.v1.engine.logprobs

from jubako.engine.vllm.llm import current_generation

TURN_SECONDS = 0.01
SHORT_PROMPT_TOKENS = 512
"""Estimated. Half a millisecond of work; longer prompts are rendered in a thread, where they hold nobody up."""


def take_turns(engine_core: Any) -> None:
    """Let others have the event loop while a backlog of steps is worked off, as after a pause of this process.

    Outputs that have arrived are had without waiting, so vLLM's output handler would go on until it has caught up.
    """
    get = engine_core.get_output_async
    since = 0.0

    async def get_output() -> Any:
        nonlocal since
        queue = getattr(engine_core, "outputs_queue", None)
        if queue is None or queue.empty():
            outputs = await get()
            since = time.monotonic()
            return outputs
        if time.monotonic() - since > TURN_SECONDS:
            await asyncio.sleep(0)
            since = time.monotonic()
        return await get()

    engine_core.get_output_async = get_output


def watch_parsers(chat: Any) -> None:
    """Have the parser of each stream that takes the short way known to it; vLLM makes one when a stream begins."""
    make = chat._make_parser  # noqa: SLF001 - where every parser comes from

    def watched(*arguments: Any, **options: Any) -> Any:
        parser = make(*arguments, **options)
        generation = current_generation.get()
        deltas = None if generation is None else generation.deltas
        return parser if deltas is None else deltas.parse(parser)

    chat._make_parser = watched  # noqa: SLF001


def render_short_prompts_here(executor: Any) -> None:
    """Render short prompts in the event loop; `executor` is the renderer's, where vLLM sends every prompt.

    A thread would have to wait for the interpreter's lock for each, while the loop is busy with everybody's tokens.
    """
    elsewhere = executor.submit

    def submit(work: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        generation = current_generation.get()
        if generation is None or generation.call.demand.prompt_tokens > SHORT_PROMPT_TOKENS:
            return cast("Future[Any]", elsewhere(work, *arguments, **options))
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments, **options))
        except Exception as error:  # noqa: BLE001 - for whoever waits
            done.set_exception(error)
        return done

    executor.submit = submit


def remember_tokens(tokenizer: Any) -> None:
    """Have each token's text decoded once: vLLM decodes every one whose probability is told, one by one, each time.

    A function of the token alone, and no more of them than the vocabulary has.
    """
    decode = vllm.v1.engine.logprobs.convert_ids_list_to_tokens
    known: dict[int, str] = {}

    def remembered(asked: Any, token_ids: list[int]) -> list[str]:
        if asked is not tokenizer:
            return decode(asked, token_ids)
        missing = [one for one in token_ids if one not in known]
        if missing:
            known.update(zip(missing, decode(tokenizer, missing), strict=True))
        return [known[one] for one in token_ids]

    vllm.v1.engine.logprobs.convert_ids_list_to_tokens = remembered
