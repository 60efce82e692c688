"""In whatever order requests come, leave and wait, no place is lost and none is given twice."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from hypothesis import settings as effort
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from jubako.errors import Refusal
from jubako.gate.admission import Ticket
from jubako.gate.admission.request import Request
from jubako.vocabulary import Step
from tests.simulated_engine import principal
from tests.virtual_admission import House


class Interleavings(RuleBasedStateMachine):
    """Any order of arrivals, turns, cancellations, ends, steps and time."""

    def __init__(self) -> None:
        super().__init__()
        self.house = House(ceiling=8, queue_requests=6, ageing_seconds=1.0)
        for running in (1, 2, 4, 8):
            for _ in range(5):
                self.house.step(running)
        fairness = self.house.admission._scheduler._fairness
        start = fairness.start

        def checked(request: Request, now: float) -> None:
            admission = self.house.admission
            most = min(8, admission.limit + max(1, admission.limit // 2))
            # Or several sequences at once, whose turn it was when there was one place.
            several = request.sequences > 1 and admission.running < admission.limit
            assert admission.running == 0 or admission.running + request.sequences <= most or several
            start(request, now)

        fairness.start = checked  # type: ignore[method-assign]

    @property
    def tickets(self) -> list[asyncio.Task[Ticket]]:
        return [task for task in self.house.usages if task.done() and not task.cancelled() and task.exception() is None]

    @rule(
        tenant=some.sampled_from("abc"),
        sequences=some.integers(1, 4),
        priority=some.integers(0, 2),
        weight=some.sampled_from([0.5, 1.0, 3.0]),
        queue_seconds=some.sampled_from([0.5, 1e6]),
        settles=some.booleans(),
    )
    def come(
        self, *, tenant: str, sequences: int, priority: int, weight: float, queue_seconds: float, settles: bool
    ) -> None:
        who = principal(tenant, priority=priority, weight=weight, queue_seconds=queue_seconds)
        (self.house.comes if settles else self.house.come)(who, sequences=sequences)

    @rule(index=some.integers(0, 20), settles=some.booleans())
    def cancel(self, index: int, settles: bool) -> None:
        pending = [task for task in self.house.usages if not task.done()]
        if pending:
            pending[index % len(pending)].cancel()
        if settles:
            self.house.loop.settle()

    @rule(index=some.integers(0, 20), generated=some.integers(0, 64), settles=some.booleans())
    def leave(self, index: int, generated: int, settles: bool) -> None:
        if not self.tickets:
            return
        task = self.tickets[index % len(self.tickets)]
        self.house.usages.pop(task).generated_tokens = generated
        task.result().leave()
        if settles:
            self.house.loop.settle()

    @rule(seconds=some.sampled_from([0.0, 0.01, 0.05, 0.5]), prompt_tokens=some.integers(0, 100))
    def step(self, seconds: float, prompt_tokens: int) -> None:
        running = self.house.admission.running
        if running:
            self.house.admission.on_step(Step(self.house.loop.now, seconds, running, prompt_tokens, running))

    @rule(seconds=some.floats(0.0, 2.0))
    def wait(self, seconds: float) -> None:
        self.house.pass_time(seconds)
        # Time alone moves the aged up; the next step is what acts on it.
        self.step(0.0, 0)

    @rule()
    def settle(self) -> None:
        """Once everything due has happened, what runs are the tickets that are held."""
        self.house.loop.settle()
        assert self.house.admission.running == sum(self.house.sequences[task] for task in self.tickets)

    @invariant()
    def holds(self) -> None:
        admission, scheduler = self.house.admission, self.house.admission._scheduler
        assert not scheduler.could_start(self.house.loop.now)
        assert scheduler.waiting == sum(admission.queue_depths.values()) <= 6
        assert admission.queue_tokens >= 0
        assert 1 <= admission.limit <= 8

    def teardown(self) -> None:
        for task in self.house.usages:
            task.cancel()
        self.house.loop.settle()
        for task in self.house.usages:
            if not task.cancelled():
                with suppress(Refusal):
                    task.result().leave()
        admission, fairness = self.house.admission, self.house.admission._scheduler._fairness
        assert (admission.running, admission.queue_depths, admission.queue_tokens) == (0, {}, 0)
        assert (admission._waiting, fairness._active, fairness._active_weight, fairness.bands) == ({}, 0, 0.0, {})
        assert not any((fairness._turns, fairness._ages, fairness._crowds, fairness._busy))
        assert fairness._absent.running == 0
        assert admission._scheduler._waiting_steps == 0
        self.house.loop.close()


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = effort(max_examples=60, stateful_step_count=60, deadline=None)
