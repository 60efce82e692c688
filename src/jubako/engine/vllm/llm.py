"""The narrow waist: every generation of every route passes `OwnedLLM.generate`.

Here the tenant's cache salt, the bound on output tokens and the exact size of the prompt are enforced, so that no route
can forget them; here a request's engine ids are known, so that it can be aborted whatever the route made of it; here
exact tokens are counted, and the error that ended a generation is seen before a serving object turns it into text.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import PrometheusStatLogger, StatLoggerBase

from jubako.engine.port import OnPrompt
from jubako.engine.step_clock import StepClock
from jubako.engine.vllm import constraints, plain, sampler
from jubako.engine.vllm.deltas import Deltas
from jubako.engine.vllm.vetting import Vetting
from jubako.errors import InternalError, InvalidRequest
from jubako.telemetry import logs
from jubako.telemetry.metrics import observe_all
from jubako.vocabulary import Call, Step, Usage

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.output_processor import RequestState

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Generation:
    """What one call of ours runs in the engine. `failure` is the error that ended any of it."""

    call: Call
    on_prompt: OnPrompt | None = None
    on_generated: Callable[[], None] | None = None
    prompt_tokens: int = 0
    """Of every prompt that was rendered, let in or not."""
    engine_ids: set[str] = field(default_factory=set)
    failure: Exception | None = None
    states: list[RequestState] = field(default_factory=list)
    """vLLM's record of each sequence; it stands after the engine has forgotten it."""
    over: bool = False
    """Nothing more may be generated for the call: it was stopped, or its reply is whole."""
    deltas: Deltas | None = None
    """Takes what is generated the short way, if the reply is a stream of one choice's plain text."""

    @property
    def request_id(self) -> str:
        """The call's."""
        return self.call.request_id

    def register(self, state: RequestState) -> None:
        """The engine has this sequence now; a prompt is counted with its first, whatever becomes of it."""
        self.states.append(state)
        if state.request_index == 0:
            self.call.usage.prompt_tokens += state.prompt_len

    def unregister(self, request_id: str) -> None:
        """The engine never had what was registered under this id: what vLLM's own checks refuse was not used."""
        for state in [one for one in self.states if one.external_req_id == request_id]:
            self.states.remove(state)
            if state.request_index == 0:
                self.call.usage.prompt_tokens -= state.prompt_len

    def ended(self) -> None:
        """The engine has made all of the reply, whatever of it was read; what was stopped before is not told."""
        if self.on_generated is None or self.over:
            return
        try:
            self.settle()
            self.on_generated()
        except Exception as error:  # noqa: BLE001 - this is called for one stream amid everybody's
            logger.error("the end of a generation was not taken in: %s", logs.place(error))

    def settle(self) -> None:
        """Make the call's usage exact: what was really generated, whatever of it reached a consumer."""
        usage = self.call.usage
        generated = sum(one.detokenizer.num_output_tokens() for one in self.states if one.detokenizer is not None)
        usage.generated_tokens = max(usage.generated_tokens, generated)
        # The choices of one prompt share it: it is counted once, with what the first of them found cached.
        cached = sum(one.num_cached_tokens for one in self.states if one.request_index == 0)
        usage.cached_tokens = min(max(usage.cached_tokens, cached), usage.prompt_tokens)
        # The engine's own times: a whole reply's consumer sees nothing before the last token.
        timed = [one.stats for one in self.states if one.stats is not None and one.stats.first_token_ts]
        if timed:
            usage.first_token_at = min(one.first_token_ts for one in timed)
            usage.decode_tokens = sum(max(one.num_generation_tokens - 1, 0) for one in timed)
            usage.decode_seconds = sum(max(one.last_token_ts - one.first_token_ts, 0.0) for one in timed)


# A context variable, because serving objects iterate the engine's generators in tasks of their own making.
current_generation: ContextVar[Generation | None] = ContextVar("current_generation", default=None)


class StepWatch(StatLoggerBase):
    """Notes the time of the engine's last step, and tells a listener of each."""

    def __init__(self) -> None:
        self.last_step_at = time.monotonic()
        self.on_step: Callable[[Step], None] | None = None
        self._clock = StepClock()
        self._busy = False
        self._told = False

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:  # names are vLLM's
        """One step's outputs arrived."""
        del mm_cache_stats, engine_idx
        now = time.monotonic()
        if self.on_step is not None and iteration_stats is not None:
            seconds = self._clock.seconds(ended_at=getattr(iteration_stats, plain.ENDED_AT, now), told_at=now)
            running = len(iteration_stats.inter_token_latencies_iter) + len(iteration_stats.time_to_first_tokens_iter)
            step = Step(
                at=now,
                seconds=seconds if self._busy else 0.0,
                running=running,
                prompt_tokens=iteration_stats.prompt_token_stats.computed,
                generated_tokens=iteration_stats.num_generation_tokens,
            )
            try:
                self.on_step(step)
            except Exception as error:  # noqa: BLE001 - whatever it is
                # vLLM would end every request for it; without this step the limit stays where it was.
                if not self._told:
                    self._told = True
                    logger.error("a step of the engine was not taken in: %s", logs.place(error))
        if scheduler_stats is not None:
            # Counted after the step: what finished in it is no work for the next.
            self._busy = scheduler_stats.num_running_reqs + scheduler_stats.num_waiting_reqs > 0
        self.last_step_at = now

    def log_engine_initialized(self) -> None:
        """Nothing to say."""

    def factory(self, _: VllmConfig, __: int = 0) -> StatLoggerBase:
        """What vLLM calls to make a stat logger: this one."""
        return self


class StepMetrics(PrometheusStatLogger):
    """vLLM's own metrics, with what there is one of for each token observed once a step."""

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:  # names are vLLM's
        """One step's outputs arrived."""
        latencies = [] if iteration_stats is None else iteration_stats.inter_token_latencies_iter
        if not latencies:
            super().record(scheduler_stats, iteration_stats, mm_cache_stats, engine_idx)
            return
        iteration_stats.inter_token_latencies_iter = []
        try:
            super().record(scheduler_stats, iteration_stats, mm_cache_stats, engine_idx)
        finally:
            iteration_stats.inter_token_latencies_iter = latencies
        observe_all(self.histogram_inter_token_latency[engine_idx], latencies)


class OwnedLLM(AsyncLLM):
    """`AsyncLLM` that knows which of our requests each generation belongs to, and holds it to what was granted."""

    vetting: Vetting

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        processor = self.output_processor
        add_request = processor.add_request

        def add_on_record(request: Any, *arguments: Any, **options: Any) -> None:
            sampler.require_room(request.sampling_params)
            add_request(request, *arguments, **options)
            generation = current_generation.get()
            if generation is not None:
                state = processor.request_states[request.request_id]
                generation.register(state)
                if generation.deltas is None:
                    plain.mark(state)
                else:
                    generation.deltas.attach(state)

        # Every sequence is registered here, at once and before the engine has it: whoever leaves later is counted.
        processor.add_request = add_on_record
        plain.take_plain_steps(processor)

    def take_over_validation(self, vetting: Vetting) -> None:
        """Have every grammar vetted, and vLLM not read it again on the event loop."""
        self.vetting = vetting
        self.input_processor.structured_outputs_config = None

    @property
    def each_token_is_shown(self) -> bool:
        """Whether a stream has what each step generates, as it is unless an engine option joins several."""
        return bool(self.output_processor.stream_interval == 1)

    async def _vet(self, params: Any, tenant: str) -> None:
        constraint = constraints.of_outputs(getattr(params, "structured_outputs", None), None)
        if constraint is not None:
            await self.vetting.vet(constraint, tenant)
            constraints.settle(params, self.vetting.backend)

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """Generate as `AsyncLLM` does, on record."""
        generation = current_generation.get()
        if generation is None or generation.over:
            raise InternalError("A generation that belongs to no request was refused.")
        try:
            await _hold_to_grant(generation, prompt, sampling_params)
        except Exception as error:
            generation.failure = error
            raise
        generation.engine_ids.add(request_id)
        usage = generation.call.usage
        # The short way counts by itself, for it does not show every token here.
        delta = sampling_params.output_kind is RequestOutputKind.DELTA and generation.deltas is None
        if generation.deltas is None:
            inner = super().generate(prompt, sampling_params, request_id, **options)
        else:
            inner = self._outputs(generation.deltas, prompt, sampling_params, request_id, options)
        begun = False
        try:
            await self._vet(sampling_params, generation.call.principal.tenant)
            async for output in inner:
                if not begun:
                    begun = True
                    usage.first_token_at = usage.first_token_at or time.monotonic()
                _follow(usage, output, delta=delta)
                yield output
        except Exception as error:
            generation.failure = error
            if not begun and not self.errored:
                generation.unregister(request_id)
            raise
        finally:
            if not begun and not self.errored:
                # vLLM registers a request before it is sent to the engine, and forgets it only once it knows the
                # queue. What fails or is cancelled in between (a number that cannot be encoded) would count as
                # unfinished for ever, and an idle engine would look stalled.
                await self.abort(request_id)
            # Closing this generator must close the engine's: that is what aborts.
            await inner.aclose()
            generation.settle()
            generation.engine_ids.discard(request_id)

    async def _outputs(
        self, deltas: Deltas, prompt: Any, sampling_params: Any, request_id: str, options: dict[str, Any]
    ) -> AsyncGenerator[RequestOutput, None]:
        """As `AsyncLLM.generate`, with what is generated taken from `deltas`, which vLLM was given to fill."""
        finished, internal_id = False, ""
        try:
            queue = await self.add_request(request_id, prompt, sampling_params, **options)
            internal_id = queue.request_id
            while not finished:
                output = await deltas.output()
                finished = output.finished
                yield output
        finally:
            # First, for the abort may be cancelled.
            deltas.detach()
            if not finished and not self.errored:
                # By the id that all choices have in common: by the caller's, vLLM would keep its record of that.
                await self.abort(internal_id or request_id, internal=bool(internal_id))


def _follow(usage: Usage, output: RequestOutput, *, delta: bool) -> None:
    """Take over what one output says; `settle` makes it exact."""
    for choice in output.outputs:
        if delta:
            usage.generated_tokens += len(choice.token_ids)
        if choice.finish_reason == "length":
            usage.cut = True


async def _hold_to_grant(generation: Generation, prompt: Any, sampling_params: Any) -> None:
    """Salt the prompt, bound the output, refuse a prompt that is too long; fails closed on what it does not know."""
    call = generation.call
    token_ids = prompt.get("prompt_token_ids") if isinstance(prompt, dict) else None
    if token_ids is None:
        raise InternalError("A prompt of an unknown kind was refused.")
    limit = call.principal.policy.limits.prompt_tokens
    if len(token_ids) > limit:
        raise InvalidRequest(
            f"The prompt has {len(token_ids)} tokens; at most {limit} are allowed.", code="context_length_exceeded"
        )
    prompt["cache_salt"] = call.cache_salt
    granted = call.demand.output_tokens
    if sampling_params.max_tokens is None or sampling_params.max_tokens > granted:
        sampling_params.max_tokens = granted
    generation.prompt_tokens += len(token_ids)
    if generation.on_prompt is not None:
        await generation.on_prompt(generation.prompt_tokens)
