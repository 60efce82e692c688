"""The engine port on vLLM: a `Call` into vLLM's request, its replies and errors into ours."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.envs import enable_envs_cache
from vllm.exceptions import VLLMError

from jubako.engine.port import OnPrompt, VitalSigns
from jubako.engine.vllm import constraints, faults
from jubako.engine.vllm.ahead import Beginning
from jubako.engine.vllm.deltas import Deltas
from jubako.engine.vllm.launch import Launched, launch
from jubako.engine.vllm.llm import Generation, current_generation
from jubako.engine.vllm.probabilities import Probabilities
from jubako.engine.vllm.vetting import Vetting
from jubako.errors import InternalError, InvalidRequest, Refusal, Unavailable
from jubako.sections import GrammarSettings
from jubako.start_times import StartTimes, now
from jubako.telemetry import logs
from jubako.vocabulary import Call, Document, Reply, Route, ServedRelease, Step, Stream

_ERROR_EVENT = 'data: {"error"'
_DONE_EVENT = "data: [DONE]"


class VllmEngine:
    """One release on one `AsyncLLM`."""

    def __init__(
        self,
        release: ServedRelease,
        options: Mapping[str, Any],
        grammar: GrammarSettings,
        shutdown_timeout_seconds: int,
        beginning: Beginning | None = None,
    ) -> None:
        self._release = release
        self._beginning = beginning or Beginning(StartTimes(now()))
        self._options = options
        self._grammar = grammar
        self._vetting: Vetting | None = None
        self._shutdown_timeout_seconds = shutdown_timeout_seconds
        self._launched: Launched | None = None
        self._generations: dict[str, Generation] = {}
        self._idle_at = time.monotonic()

    async def start(self) -> None:
        """Load the model; see the port."""
        self._launched = await launch(self._release, self._options, self._shutdown_timeout_seconds, self._beginning)
        self._vetting = Vetting.of_engine(self._launched.llm.vllm_config, self._grammar)
        self._launched.llm.take_over_validation(self._vetting)
        # Environment look-ups are 9% of what a streamed token costs; after the start nothing changes them.
        enable_envs_cache()
        # While it starts, tracebacks are welcome; from now on they could quote a request.
        logs.keep_content_out("vllm")

    @property
    def _running(self) -> Launched:
        if self._launched is None:
            raise Unavailable("The model is not ready yet.", code="not_ready")
        return self._launched

    @property
    def names(self) -> tuple[str, ...]:
        """Aliases, then adapters; see the port."""
        return (*self._release.aliases, *self._release.adapters)

    @property
    def ceiling(self) -> int:
        """vLLM's `max_num_seqs`."""
        return int(self._running.llm.vllm_config.scheduler_config.max_num_seqs)

    def listen(self, on_step: Callable[[Step], None]) -> None:
        """See the port."""
        self._running.steps.on_step = on_step

    async def models(self) -> list[dict[str, Any]]:
        """Served names, in vLLM's shape but for the folder on disk."""
        shown = await self._running.state.openai_serving_models.show_available_models()
        cards: list[dict[str, Any]] = shown.model_dump()["data"]
        for card in cards:
            card["root"] = card["id"]
        return cards

    def warm(self) -> None:
        """Start what need not be there for the first request; called once the server is ready."""
        if self._vetting is not None:
            self._vetting.warm()

    async def vet(self, call: Call) -> None:
        """Refuse a grammar before anything is held for the request; see the port."""
        vetting = self._vetting
        if vetting is None or not constraints.any_in(call.body):
            return
        tenant = call.principal.tenant
        for constraint in constraints.of_body(call.body):
            await vetting.vet(constraint, tenant)
        model = ChatCompletionRequest if call.route is Route.CHAT else CompletionRequest
        try:
            request = _validated(model, call)
            own = constraints.of_request(request)
            if own is not None:
                await vetting.vet(own, tenant)
            if call.route is Route.CHAT:
                made = constraints.of_tools(request, lambda: self._parser(request))
                if made is not None:
                    await vetting.vet(made, tenant)
        except (Refusal, asyncio.CancelledError):
            raise
        except Exception as error:
            raise self._refusal(error) from error

    def _parser(self, request: ChatCompletionRequest) -> Any:
        """The parser that vLLM will work the tools in with, or None."""
        chat = self._running.state.openai_serving_chat
        if chat.parser_cls is None:
            return None
        arguments = chat._effective_chat_template_kwargs(request)  # noqa: SLF001 - as vLLM does for each request
        return chat._make_parser(request, chat.renderer.tokenizer, arguments)  # noqa: SLF001

    async def answer(
        self, call: Call, on_prompt: OnPrompt | None = None, on_generated: Callable[[], None] | None = None
    ) -> Reply:
        """Render and generate; see the port."""
        launched = self._running
        generation = Generation(call, on_prompt, on_generated)
        current_generation.set(generation)
        self._generations[call.request_id] = generation
        try:
            if call.route is Route.CHAT:
                result = await self._chat(launched, generation)
            else:
                result = await self._completion(launched, generation)
            if isinstance(result, ErrorResponse):
                raise generation.failure or faults.from_body(result.model_dump()["error"])
        except (Refusal, asyncio.CancelledError):
            await self._stop(generation)
            raise
        except Exception as error:
            await self._stop(generation)
            raise self._refusal(error) from error
        if isinstance(result, BaseModel):
            await self._stop(generation)
            return Document(result.model_dump_json().encode())
        deltas = generation.deltas
        # Several choices would be offered one by one; together they take one write.
        through = None if deltas is None or call.demand.sequences > 1 else deltas.through
        return Stream(self._events(result, generation), through)

    async def _chat(self, launched: Launched, generation: Generation) -> Any:
        call = generation.call
        request = _validated(ChatCompletionRequest, call)
        self._require_survivable(scored=request.prompt_logprobs is not None)
        chat = launched.state.openai_serving_chat
        # Of several choices, each would have a parser of its own.
        one = call.demand.choices == 1 or chat.parser_cls is None
        probabilities = None if chat.parser_cls is not None else Probabilities.of(request, chat)
        if one and _is_plain(request, scored=probabilities is not None) and launched.llm.each_token_is_shown:
            generation.deltas = Deltas(call.usage, request, generation.ended, probabilities)
        return await chat.create_chat_completion(request)

    async def _completion(self, launched: Launched, generation: Generation) -> Any:
        call = generation.call
        request = _validated(CompletionRequest, call)
        echoed = request.echo and request.logprobs is not None
        self._require_survivable(scored=request.prompt_logprobs is not None or bool(echoed))
        if call.demand.prompts == 1 and _is_plain(request) and launched.llm.each_token_is_shown:
            generation.deltas = Deltas(call.usage, request, generation.ended)
        return await launched.state.openai_serving_completion.create_completion(request)

    def _require_survivable(self, *, scored: bool) -> None:
        """Refuse what ends an engine with adapters: it takes the rows of a prompt for those of a step."""
        if scored and self._release.adapters:
            raise InvalidRequest(
                "Log-probabilities of prompts cannot be had where adapters are served.",
                code="unsupported_value",
            )

    async def _events(self, source: AsyncGenerator[str], generation: Generation) -> AsyncGenerator[bytes]:
        """The events of vLLM; its in-stream error, which a `[DONE]` would follow, is raised instead."""
        deltas, route = generation.deltas, generation.call.route
        try:
            async for event in source:
                if event.startswith(_ERROR_EVENT):
                    raise self._streamed_refusal(event, generation)
                yield event.encode()
                if event.startswith(_DONE_EVENT):
                    return
                if deltas is not None and deltas.learn(event, route):
                    while (plain := await deltas.events()) is not None:
                        yield plain
            raise InternalError("The stream ended early.")
        finally:
            await source.aclose()
            await self._stop(generation)

    def _streamed_refusal(self, event: str, generation: Generation) -> Refusal:
        if generation.failure is not None:
            return self._refusal(generation.failure)
        if self._running.llm.errored:
            return Unavailable("The engine is not available. The request was not completed.", code="engine_unavailable")
        return faults.from_body(json.loads(event.removeprefix("data: "))["error"])

    def _refusal(self, error: Exception) -> Refusal:
        return faults.from_exception(error)

    async def _stop(self, generation: Generation) -> None:
        """End what still runs of it, then count: serving objects leave their generators to be closed at some time."""
        self._generations.pop(generation.request_id, None)
        generation.over = True
        try:
            if generation.engine_ids and self._launched is not None and not self._launched.llm.errored:
                await self._launched.llm.abort(list(generation.engine_ids))
        finally:
            generation.settle()

    async def abort(self, request_id: str) -> None:
        """Stop everything that runs for `request_id`; see the port."""
        generation = self._generations.get(request_id)
        if generation is not None:
            await self._stop(generation)

    def vital_signs(self) -> VitalSigns:
        """The pulse; see the port."""
        if self._launched is None:
            return VitalSigns(alive=True, unfinished=0, last_step_at=time.monotonic())
        unfinished = self._launched.llm.get_num_unfinished_requests()
        if not unfinished:
            self._idle_at = time.monotonic()
        last_step_at = max(self._idle_at, self._launched.steps.last_step_at)
        return VitalSigns(alive=not self._launched.llm.errored, unfinished=unfinished, last_step_at=last_step_at)

    def end_expected(self) -> None:
        """See the port. SIGTERM reaches the engine's process too; idle, it ends at once: to vLLM that is an error."""
        logging.getLogger("vllm.v1.engine.async_llm").addFilter(
            lambda record: "output_handler" not in record.getMessage()
        )

    async def close(self, timeout_seconds: float) -> None:
        """End the engine's processes; see the port."""
        if self._vetting is not None:
            await self._vetting.close()
        if self._launched is not None:
            launched, self._launched = self._launched, None
            await asyncio.to_thread(launched.llm.shutdown, timeout_seconds)


def _is_plain(request: Any, *, scored: bool = False) -> bool:
    """Whether the events of the reply differ in nothing but text, usage and, if they are `scored`, probabilities."""
    return bool(
        request.stream
        and (scored or request.logprobs is None or request.logprobs is False)
        and request.prompt_logprobs is None
        and not request.echo
        and not request.return_token_ids
    )


def _validated(model: type[BaseModel], call: Call) -> Any:
    """The request as vLLM has it, under our id. Whatever its validation raises is about the caller's fields."""
    try:
        return model.model_validate({**call.body, "request_id": call.request_id})
    except (ValidationError, VLLMError):
        raise
    except Exception as error:
        # vLLM's validators look into some fields before their types are checked.
        raise InvalidRequest("A field of the request has a wrong type or a wrong shape.") from error
