"""An admission in an event loop whose time is set by hand, and everyone who ever came to it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from jubako.gate.admission import Admission, Ticket
from jubako.vocabulary import Principal, Step, Usage
from tests.simulated_engine import demand, principal, settings


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is set by hand."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    def settle(self) -> None:
        """Let everything happen that is due."""
        for _ in range(8):
            self.run_until_complete(asyncio.sleep(0))


class House:
    """An admission in a virtual loop, and everyone who ever came to it."""

    def __init__(self, *, ceiling: int = 2, **changes: float) -> None:
        self.loop = VirtualLoop()
        self.admission = Admission(settings(**changes), ceiling=ceiling, clock=self.loop.time)
        self.usages: dict[asyncio.Task[Ticket], Usage] = {}
        self.sequences: dict[asyncio.Task[Ticket], int] = {}

    def come(
        self, who: Principal | None = None, *, sequences: int = 1, output: int = 64, deadline_seconds: float = 600.0
    ) -> asyncio.Task[Ticket]:
        """Ask for a turn; nothing happens until the loop runs."""
        usage = Usage()
        coroutine: Coroutine[Any, Any, Ticket] = self.admission.admit(
            who or principal(queue_seconds=1e6),
            demand(sequences=sequences, output=output),
            usage,
            deadline_at=self.loop.now + deadline_seconds,
        )
        task = self.loop.create_task(coroutine)
        self.usages[task] = usage
        self.sequences[task] = sequences
        return task

    def comes(self, *arguments: Any, **named: Any) -> asyncio.Task[Ticket]:
        """The same, and the loop runs."""
        task = self.come(*arguments, **named)
        self.loop.settle()
        return task

    def pass_time(self, seconds: float) -> None:
        self.loop.now += seconds
        self.loop.settle()

    def step(self, running: int, seconds: float = 0.05) -> None:
        self.admission.on_step(Step(self.loop.now, seconds, running, 0, running))
        self.loop.settle()

    def close(self) -> None:
        for task in self.usages:
            task.cancel()
        self.loop.settle()
        for task in self.usages:
            if task.done() and not task.cancelled():
                task.exception()
        self.loop.close()
