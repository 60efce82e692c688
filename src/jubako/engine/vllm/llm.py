"""The narrow waist: every generation of every route passes `OwnedLLM.generate`.

Here a request's engine ids are known, so that it can be aborted whatever the route made of it; here the error that
ended it is seen as it was raised, before a serving object turns it into text; here the engine's steps are noticed.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase

from jubako.engine.vllm import constraints
from jubako.engine.vllm.vetting import Vetting

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.outputs import RequestOutput


@dataclass(slots=True)
class Generation:
    """What one call of ours runs in the engine. `failure` is the error that ended any of it."""

    request_id: str
    tenant: str = ""
    engine_ids: set[str] = field(default_factory=set)
    failure: Exception | None = None


# A context variable, because serving objects iterate the engine's generators in tasks of their own making.
current_generation: ContextVar[Generation | None] = ContextVar("current_generation", default=None)


class StepWatch(StatLoggerBase):
    """Notes the time of the engine's last step."""

    def __init__(self) -> None:
        self.last_step_at = time.monotonic()

    def record(self, *_: Any, **__: Any) -> None:
        """One step's outputs arrived."""
        self.last_step_at = time.monotonic()

    def log_engine_initialized(self) -> None:
        """Nothing to say."""

    def factory(self, _: VllmConfig, __: int = 0) -> StatLoggerBase:
        """What vLLM calls to make a stat logger: this one."""
        return self


class OwnedLLM(AsyncLLM):
    """`AsyncLLM` that knows which of our requests each generation belongs to."""

    vetting: Vetting

    def take_over_validation(self, vetting: Vetting) -> None:
        """Have every grammar vetted, and vLLM not read it again on the event loop."""
        self.vetting = vetting
        self.input_processor.structured_outputs_config = None

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
        if generation is not None:
            generation.engine_ids.add(request_id)
        inner = super().generate(prompt, sampling_params, request_id, **options)
        begun = False
        try:
            await self._vet(sampling_params, "" if generation is None else generation.tenant)
            async for output in inner:
                begun = True
                yield output
        except Exception as error:
            if generation is not None:
                generation.failure = error
            raise
        finally:
            if not begun and not self.errored:
                # vLLM registers a request before it is sent to the engine, and forgets it only once it knows the
                # queue. What fails or is cancelled in between (a number that cannot be encoded) would count as
                # unfinished for ever, and an idle engine would look stalled.
                await self.abort(request_id)
            # Closing this generator must close the engine's: that is what aborts.
            await inner.aclose()
            if generation is not None:
                generation.engine_ids.discard(request_id)
