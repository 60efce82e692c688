"""What the rest of Jubako may ask of an engine. No vLLM here: tests of other rooms bring their own engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from jubako.vocabulary import Call, Reply, Step


@dataclass(frozen=True, slots=True)
class VitalSigns:
    """The engine's pulse. Times are seconds of the monotonic clock.

    `unfinished` counts requests that the engine has not finished; `last_step_at` is when it last reported a step, or
    when it last went from idle to busy.
    """

    alive: bool
    unfinished: int
    last_step_at: float


OnPrompt = Callable[[int], Awaitable[None]]
"""Given the exact prompt tokens of a call so far, before they are computed; what it raises ends the call."""


class Engine(Protocol):
    """One model, ready to generate."""

    async def start(self) -> None:
        """Load the model; returns when the engine can generate. Raises `StartupFault`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every served name: aliases first, then adapters. The first answers requests that name no model."""

    async def models(self) -> list[dict[str, Any]]:
        """Each served name as `/v1/models` shows it."""

    @property
    def ceiling(self) -> int:
        """The most sequences that the engine runs at once."""

    def listen(self, on_step: Callable[[Step], None]) -> None:
        """Have `on_step` called for every step from now on, in the event loop; it must be quick and raise nothing."""

    def warm(self) -> None:
        """Start, in the background, what need not be there for the first request; called once the server is ready."""

    async def vet(self, call: Call) -> None:
        """Refuse a schema, regular expression or grammar that is wrong, or too costly for the engine to prepare.

        Raises `InvalidRequest`. Costs nothing to others: the work is done outside this process, within limits.
        """

    async def answer(
        self, call: Call, on_prompt: OnPrompt | None = None, on_generated: Callable[[], None] | None = None
    ) -> Reply:
        """Generate. Raises `Refusal`; cancelling the caller aborts in the engine.

        Every prompt is salted with `call.cache_salt` and every choice bounded by `call.demand.output_tokens`;
        `call.usage` follows what is used. `on_prompt` is awaited with the exact prompt tokens of the call so far,
        before they are computed; what it raises ends the call. `on_generated` may be called once the engine has no more
        to do for the call, whatever of it has been sent; it must be quick and raise nothing.
        """

    async def abort(self, request_id: str) -> None:
        """Stop everything that runs for `request_id`; nothing happens if nothing does.

        When it returns, the call's usage is exact and final, and so it is once `answer` or its events have ended.
        """

    def vital_signs(self) -> VitalSigns:
        """The pulse, without waiting for anything."""

    def end_expected(self) -> None:
        """Say that the server is about to end, so that an engine that ends by itself is no fault to report."""

    async def close(self, timeout_seconds: float) -> None:
        """End the engine's processes; those still there after `timeout_seconds` are killed."""
