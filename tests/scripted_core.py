"""vLLM's real front end in front of an engine that says what a test says: no process, no model, no weights.

Everything on this side of the engine's socket is vLLM's and Jubako's own: renderer, serving objects, output processor,
detokenizer, statistics. The engine's side is a `ScriptedCore`: a test hands it the tokens of each step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from jubako.sections import GrammarSettings
from jubako.vocabulary import ServedRelease

GRAMMAR = GrammarSettings(check_seconds=5, memory_bytes=2**29)
OPTIONS: Mapping[str, Any] = {"enforce_eager": True, "max_model_len": 2048, "max_num_seqs": 256}


class ScriptedCore:
    """The client of an engine's process, as far as `AsyncLLM` uses it."""

    engine_ranks_managed = (0,)

    def __init__(self) -> None:
        self.resources = SimpleNamespace(engine_dead=False)
        self.requests: dict[str, Any] = {}
        """By the engine's own id, in the order in which they came; those that were aborted or finished are gone."""
        self.aborted: list[str] = []
        self.came: Callable[[Any], None] = lambda request: None
        """Called with each request."""
        self._outputs: asyncio.Queue[Any] = asyncio.Queue()

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        """What a text model does."""
        return ("generate",)

    async def reset_mm_cache_async(self) -> None:
        """There is none."""

    async def get_output_async(self) -> Any:
        """The next step."""
        outputs = await self._outputs.get()
        if isinstance(outputs, Exception):
            raise outputs
        return outputs

    async def add_request_async(self, request: Any) -> None:
        """Take a request."""
        self.requests[request.request_id] = request
        self.came(request)

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """Forget requests."""
        for request_id in request_ids:
            self.aborted.append(request_id)
            self.requests.pop(request_id, None)

    def shutdown(self, timeout: float | None = None) -> None:
        """Nothing to end."""

    def step(
        self,
        tokens: Mapping[str, Sequence[int]],
        *,
        finish: Mapping[str, tuple[str, int | str | None]] | None = None,
        logprobs: Mapping[str, Any] | None = None,
        at: float | None = None,
    ) -> None:
        """One step: new tokens by engine id; `finish` has a finish reason and a stop reason for those that end.

        `at` is when it ended, by the engine's clock; None: now.
        """
        from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
        from vllm.v1.metrics.stats import PrefillStats, SchedulerStats

        outputs = []
        for request_id, new in tokens.items():
            reason, stop = (finish or {}).get(request_id, (None, None))
            request = self.requests.get(request_id)
            prefill = None
            if request is not None and not getattr(request, "seen", False):
                prefill = PrefillStats(num_prompt_tokens=len(request.prompt_token_ids))
                self.requests[request_id] = SimpleNamespace(seen=True, external_req_id=request.external_req_id)
            outputs.append(
                EngineCoreOutput(
                    request_id,
                    list(new),
                    new_logprobs=(logprobs or {}).get(request_id),
                    finish_reason=None if reason is None else FinishReason[reason.upper()],
                    stop_reason=stop,
                    prefill_stats=prefill,
                )
            )
            if reason is not None:
                self.requests.pop(request_id, None)
        running = SchedulerStats(num_running_reqs=len(self.requests))
        self._outputs.put_nowait(
            EngineCoreOutputs(
                outputs=outputs, scheduler_stats=running, timestamp=time.monotonic() if at is None else at
            )
        )

    def fail(self, error: Exception) -> None:
        """The engine's connection breaks."""
        self._outputs.put_nowait(error)

    @property
    def idle(self) -> bool:
        """Whether every step was taken."""
        return self._outputs.empty()


async def front_end(
    model: Path, *, options: Mapping[str, Any] = OPTIONS, served: Mapping[str, Any] | None = None
) -> tuple[Any, ScriptedCore]:
    """Jubako's engine over vLLM's front end, and the core that a test speaks through. To be made in the event loop."""
    from vllm.v1.engine.core_client import EngineCoreClient

    from jubako.engine.vllm.adapter import VllmEngine

    core = ScriptedCore()
    release = ServedRelease("d" * 64, str(model), ("scripted",), "bfloat16", options=dict(served or {}))
    with mock.patch.object(EngineCoreClient, "make_async_mp_client", staticmethod(lambda **_: core)):
        engine = VllmEngine(release, options, GRAMMAR, 5)
        await engine.start()
    return engine, core


def encode(engine: Any, text: str) -> list[int]:
    """The tokens of `text`, as the model would say it."""
    tokenizer = engine._launched.llm.renderer.tokenizer
    ids: Iterable[int] = tokenizer.encode(text, add_special_tokens=False)
    return list(ids)
