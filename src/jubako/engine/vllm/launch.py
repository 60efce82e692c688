"""From a release and engine options to a running `AsyncLLM` with vLLM's own serving objects around it."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import vllm.v1.engine.logprobs
from starlette.datastructures import State
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser

from jubako.engine import options as engine_options
from jubako.engine.vllm.llm import OwnedLLM, StepMetrics, StepWatch, current_generation
from jubako.errors import StartupFault
from jubako.vocabulary import ServedRelease

FINGERPRINT_CHARACTERS = 16
SHORT_PROMPT_TOKENS = 512
"""Estimated. Half a millisecond of work; longer prompts are rendered in a thread, where they hold nobody up."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A running engine: the model's owner, its serving objects, its step watch."""

    llm: OwnedLLM
    state: State
    steps: StepWatch


class _Parser(FlexibleArgumentParser):
    """vLLM's parser, raising where it would print its usage and exit the process."""

    def error(self, message: str) -> NoReturn:
        raise StartupFault(f"engine options: {message}")


def parse(release: ServedRelease, options: Mapping[str, Any], shutdown_timeout_seconds: int) -> argparse.Namespace:
    """All of vLLM's arguments for this release; raises `StartupFault` for a value that vLLM does not take."""
    owned: dict[str, Any] = {
        "model": release.model_folder,
        "served_model_name": list(release.aliases),
        "dtype": release.dtype,
        "load_format": "safetensors",
        "fingerprint_mode": "custom",
        "fingerprint_value": fingerprint(release.digest),
        "shutdown_timeout": shutdown_timeout_seconds,
    }
    merged = {**options, **release.options}
    if release.adapters:
        owned["enable_lora"] = True
        # To vLLM's CPU kernels a request without an adapter is one with the adapter of the last slot, whenever another
        # request in the batch has one. That slot is zero, and adds nothing, as long as no adapter is in it.
        given = merged.get("max_loras")
        if given is None or isinstance(given, int):  # anything else is vLLM's parser's to refuse
            owned["max_loras"] = max(len(release.adapters) + 1, given or 0)
        owned["lora_modules"] = [json.dumps({"name": n, "path": p}) for n, p in release.adapters.items()]
    merged |= owned
    parser = make_arg_parser(_Parser())
    arguments = parser.parse_args(engine_options.arguments(merged))
    try:
        validate_parsed_serve_args(arguments)
    except (TypeError, ValueError, KeyError) as error:
        raise StartupFault(f"engine options: {error}") from None
    return arguments


def fingerprint(digest: str) -> str:
    """The release digest as `system_fingerprint` shows it."""
    return f"jubako-{digest[:FINGERPRINT_CHARACTERS]}"


def build(arguments: argparse.Namespace) -> tuple[OwnedLLM, StepWatch]:
    """Start the engine's processes and load the model. Blocks until it can generate; run it in a thread."""
    steps = StepWatch()
    try:
        config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config(UsageContext.OPENAI_API_SERVER)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise StartupFault(f"engine options: {error}") from None
    llm = OwnedLLM.from_vllm_config(
        config,
        usage_context=UsageContext.OPENAI_API_SERVER,
        stat_loggers=[steps.factory, StepMetrics],
        enable_log_requests=False,
        disable_log_stats=False,
    )
    return llm, steps


async def wire(llm: OwnedLLM, arguments: argparse.Namespace) -> State:
    """The serving objects of vLLM on a bare state: exact wiring of every flag, and no routes."""
    state = State()
    await llm.reset_mm_cache()
    try:
        await init_app_state(llm, state, arguments, await llm.get_supported_tasks())
    except (ValueError, TypeError, KeyError) as error:
        raise StartupFault(f"engine options: {error}") from None
    if state.openai_serving_chat is not None:
        watch_parsers(state.openai_serving_chat)
    render_short_prompts_here(llm.renderer._executor)  # noqa: SLF001 - kept for good by whatever uses it
    if llm.output_processor.tokenizer is not None:
        remember_tokens(llm.output_processor.tokenizer)
    return state


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


async def launch(release: ServedRelease, options: Mapping[str, Any], shutdown_timeout_seconds: int) -> Launched:
    """Everything above, in order."""
    arguments = parse(release, options, shutdown_timeout_seconds)
    llm, steps = await asyncio.to_thread(build, arguments)
    try:
        state = await wire(llm, arguments)
    except BaseException:
        await asyncio.to_thread(llm.shutdown, 0)
        raise
    return Launched(llm, state, steps)
