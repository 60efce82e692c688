"""From a release and engine options to a running `AsyncLLM` with vLLM's own serving objects around it."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import psutil
from starlette.datastructures import State
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine import utils as engine_utils

from jubako import start_times
from jubako.engine import options as engine_options
from jubako.engine.vllm import shortcuts
from jubako.engine.vllm.ahead import Beginning, Context, Interpreter
from jubako.engine.vllm.llm import OwnedLLM, StepMetrics, StepWatch
from jubako.errors import StartupFault
from jubako.start_times import StartPhase
from jubako.vocabulary import ServedRelease

FINGERPRINT_CHARACTERS = 16


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


def build(arguments: argparse.Namespace, beginning: Beginning) -> tuple[OwnedLLM, StepWatch]:
    """Start the engine's processes and load the model. Blocks until it can generate; run it in a thread."""
    steps = StepWatch()
    try:
        config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config(UsageContext.OPENAI_API_SERVER)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise StartupFault(f"engine options: {error}") from None
    times, interpreter = beginning.times, beginning.interpreter
    times.end(StartPhase.ENGINE_CONFIGURATION)
    parallel = config.parallel_config
    # What vLLM arranges around the start of each such process must be met by a start.
    arranged = parallel.numa_bind or parallel.data_parallel_size > 1
    if arranged and interpreter is not None:
        interpreter.discard()
    with _started_ahead(None if arranged else interpreter):
        llm = OwnedLLM.from_vllm_config(
            config,
            usage_context=UsageContext.OPENAI_API_SERVER,
            stat_loggers=[steps.factory, StepMetrics],
            enable_log_requests=False,
            disable_log_stats=False,
        )
    times.end(StartPhase.ENGINE_LOADING)
    computing = _computing_began(llm)
    if computing is not None:
        times.end(StartPhase.ENGINE_PROCESS, computing)
    return llm, steps


@contextmanager
def _started_ahead(interpreter: Interpreter | None) -> Iterator[None]:
    """Have vLLM make the engine's process of `interpreter`, unless it would not use `spawn`."""
    choose = engine_utils.get_mp_context
    ahead = None if interpreter is None else Context(interpreter)

    def chosen() -> Any:
        context = choose()
        return ahead if ahead is not None and context.get_start_method() == "spawn" else context

    engine_utils.get_mp_context = chosen
    try:
        yield
    finally:
        engine_utils.get_mp_context = choose
        if ahead is not None:
            ahead.discard()


def _computing_began(llm: OwnedLLM) -> float | None:
    """When the first process below the engine's own began, the one that computes, if there is one."""
    with suppress(psutil.Error, OSError, AttributeError):  # a time to show is worth no failed start
        engines = llm.engine_core.resources.engine_manager.processes
        children = [child for engine in engines for child in psutil.Process(engine.pid).children()]
        computing = [child.pid for child in children if "resource_tracker" not in " ".join(child.cmdline())]
        return min(map(start_times.begun, computing), default=None)
    return None


async def wire(llm: OwnedLLM, arguments: argparse.Namespace) -> State:
    """The serving objects of vLLM on a bare state: exact wiring of every flag, and no routes."""
    state = State()
    await llm.reset_mm_cache()
    try:
        await init_app_state(llm, state, arguments, await llm.get_supported_tasks())
    except (ValueError, TypeError, KeyError) as error:
        raise StartupFault(f"engine options: {error}") from None
    if state.openai_serving_chat is not None:
        shortcuts.watch_parsers(state.openai_serving_chat)
    shortcuts.take_turns(llm.engine_core)
    shortcuts.render_short_prompts_here(llm.renderer._executor)  # noqa: SLF001 - kept for good by whatever uses it
    if llm.output_processor.tokenizer is not None:
        shortcuts.remember_tokens(llm.output_processor.tokenizer)
    return state


async def launch(
    release: ServedRelease,
    options: Mapping[str, Any],
    shutdown_timeout_seconds: int,
    beginning: Beginning,
) -> Launched:
    """Everything above, in order."""
    arguments = parse(release, options, shutdown_timeout_seconds)
    llm, steps = await asyncio.to_thread(build, arguments, beginning)
    try:
        state = await wire(llm, arguments)
    except BaseException:
        await asyncio.to_thread(llm.shutdown, 0)
        raise
    beginning.times.end(StartPhase.SERVING)
    return Launched(llm, state, steps)
