"""An engine that does what a test says: the port of `jubako.engine.port`, without a model.

It knows the port and nothing of HTTP or of vLLM.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from jubako.engine.port import OnPrompt, VitalSigns
from jubako.vocabulary import Call, Document, Reply, Step, Stream

DONE = b"data: [DONE]\n\n"
Script = Callable[[Call], Awaitable[Reply]]


def event(text: str) -> bytes:
    """One server-sent event that says `text`."""
    return b"data: " + json.dumps({"text": text}).encode() + b"\n\n"


class ScriptedEngine:
    """Answers each call by its script, and remembers what it was asked, what it was told to abort, what it closed."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or says({"text": "hello"})
        self.signs = VitalSigns(alive=True, unfinished=0, last_step_at=time.monotonic())
        self.calls: list[Call] = []
        self.asked = asyncio.Event()
        self.aborted: list[str] = []
        self.closed: list[float] = []
        self.vetted: list[Call] = []
        self.on_step: Callable[[Step], None] | None = None
        self.prompt_tokens = 0

    async def start(self) -> None:
        """Nothing to load."""

    @property
    def names(self) -> tuple[str, ...]:
        """One model."""
        return ("scripted",)

    @property
    def ceiling(self) -> int:
        """Enough for any test."""
        return 256

    def listen(self, on_step: Callable[[Step], None]) -> None:
        """Remember who listens: a script may tell it of steps."""
        self.on_step = on_step

    async def models(self) -> list[dict[str, Any]]:
        """The one model."""
        return [{"id": "scripted", "object": "model"}]

    def warm(self) -> None:
        """Nothing to warm."""

    async def vet(self, call: Call) -> None:
        """Remember it."""
        self.vetted.append(call)

    async def answer(
        self, call: Call, on_prompt: OnPrompt | None = None, on_generated: Callable[[], None] | None = None
    ) -> Reply:
        """What the script says; the prompt has as many tokens as was estimated."""
        self.calls.append(call)
        call.usage.prompt_tokens = self.prompt_tokens or call.demand.prompt_tokens
        if on_prompt is not None:
            await on_prompt(call.usage.prompt_tokens)
        self.asked.set()
        return await self.script(call)

    async def abort(self, request_id: str) -> None:
        """Remember it."""
        self.aborted.append(request_id)

    def vital_signs(self) -> VitalSigns:
        """What the test set."""
        return self.signs

    def end_expected(self) -> None:
        """Nothing to say."""

    async def close(self, timeout_seconds: float) -> None:
        """Remember it."""
        self.closed.append(timeout_seconds)


def says(value: Any) -> Script:
    """A whole reply."""

    async def script(_: Call) -> Reply:
        return _document(value)

    return script


def raises(error: BaseException) -> Script:
    """An error instead of a reply."""

    async def script(_: Call) -> Reply:
        raise error

    return script


def hangs() -> Script:
    """No reply, ever."""

    async def script(_: Call) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    return script


def swallows_cancellation(error: Exception) -> Script:
    """No reply until it is cancelled; then `error` instead of the cancellation, as vLLM's serving objects have it."""

    async def script(_: Call) -> Reply:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise error from None
        raise AssertionError

    return script


def streams(*steps: bytes | float | BaseException | asyncio.Event) -> Script:
    """A stream: bytes are sent, numbers are seconds of silence, errors are raised, events are waited for."""

    async def events() -> AsyncGenerator[bytes]:
        for step in steps:
            if isinstance(step, bytes):
                yield step
            elif isinstance(step, BaseException):
                raise step
            elif isinstance(step, asyncio.Event):
                await step.wait()
            else:
                await asyncio.sleep(step)

    async def script(_: Call) -> Reply:
        return Stream(events())

    return script


def _document(value: Any) -> Document:
    return Document(json.dumps(value).encode())
