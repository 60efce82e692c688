"""Admission as the pipeline uses it: turns, refusals, time limits, cancellation; and goodput under overload."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import settings as effort
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from jubako.errors import Busy, DeadlineExceeded, Refusal, Unavailable
from jubako.gate.admission import Admission, Ticket
from jubako.gate.admission.request import Request
from jubako.vocabulary import Principal, Step, Usage
from tests.simulated_engine import SimulatedEngine, demand, percentile, poisson, principal, settings


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


@pytest.fixture
def house() -> Iterator[Callable[..., House]]:
    """Makes admissions, and closes them."""
    made: list[House] = []

    def make(**changes: Any) -> House:
        made.append(House(**changes))
        return made[-1]

    yield make
    for one in made:
        one.close()


def refusal(task: asyncio.Task[Ticket]) -> Refusal:
    """Why a request that is over was refused."""
    assert task.done()
    error = task.exception()
    assert isinstance(error, Refusal)
    return error


def test_who_has_room_starts_at_once_and_who_leaves_makes_room(house: Callable[..., House]) -> None:
    """Leaving twice makes room once."""
    one = house(ceiling=2)
    first, second, third, fourth = (one.comes() for _ in range(4))
    assert [first.done(), second.done(), third.done(), fourth.done()] == [True, True, False, False]
    assert (one.admission.running, one.admission.queue_depths, one.admission.queue_tokens) == (2, {1: 2}, 2 * 84)
    one.pass_time(3.0)
    first.result().leave()
    first.result().leave()
    one.loop.settle()
    assert (third.done(), fourth.done()) == (True, False)
    assert third.result().queued_seconds == pytest.approx(3.0)
    assert first.result().queued_seconds == 0.0


def test_a_request_larger_than_the_limit_runs_alone(house: Callable[..., House]) -> None:
    """It waits for the others, and the others for it."""
    one = house(ceiling=2)
    first = one.comes()
    large, small = one.comes(sequences=5), one.comes()
    assert not large.done()
    assert not small.done()
    first.result().leave()
    one.loop.settle()
    assert (one.admission.running, small.done()) == (5, False)
    large.result().leave()
    one.loop.settle()
    assert small.done()


def test_a_full_queue_refuses_and_says_when_to_come_back(house: Callable[..., House]) -> None:
    """By requests and by tokens."""
    for changes in ({"queue_requests": 2}, {"queue_tokens": 2 * 84}):
        one = house(ceiling=1, **changes)
        tasks = [one.comes() for _ in range(4)]
        assert [task.done() for task in tasks] == [True, False, False, True]
        full = refusal(tasks[-1])
        assert (type(full), full.code) == (Busy, "queue_full")
        assert full.retry_after_seconds == pytest.approx(64 * 0.15, rel=0.5)


def test_a_full_queue_makes_room_for_a_tenant_within_its_part(house: Callable[..., House]) -> None:
    """The newest request of the tenant that holds most of it goes; the flood's own next one is refused."""
    one = house(ceiling=1, queue_requests=4)
    flood = [one.comes() for _ in range(5)]
    light = [one.comes(principal("light", queue_seconds=1e6)) for _ in range(3)]
    assert [task.done() for task in light] == [False, False, True]
    assert [task.done() for task in flood] == [True, False, False, True, True]
    assert {refusal(task).code for task in (flood[3], flood[4], light[2])} == {"queue_full"}
    assert refusal(one.comes()).code == "queue_full"


def test_a_wait_longer_than_allowed_is_refused_at_the_door(house: Callable[..., House]) -> None:
    """By the policy's limit or by the deadline; with the time after which it would not be."""
    one = house(ceiling=1)
    one.comes()
    impatient = refusal(one.comes(principal(queue_seconds=2.0)))
    assert (type(impatient), impatient.code) == (Busy, "wait_too_long")
    assert impatient.retry_after_seconds == pytest.approx(64 * 0.15 - 2.0, rel=0.1)
    assert refusal(one.comes(deadline_seconds=15.0)).code == "wait_too_long"
    assert not one.comes(deadline_seconds=60.0).done()
    assert isinstance(refusal(one.comes(deadline_seconds=0.0)), DeadlineExceeded)


def test_an_expectation_is_no_reason_to_refuse_an_idle_engine(house: Callable[..., House]) -> None:
    """A request that may not be done by its deadline starts if it can: its time is not up yet."""
    one = house(ceiling=1)
    assert one.comes(output=1000, deadline_seconds=1.0).result().queued_seconds == 0.0


def test_who_has_waited_as_long_as_allowed_is_refused_on_time(house: Callable[..., House]) -> None:
    """Not before, not later, and with a time to come back."""
    one = house(ceiling=1)
    one.comes()
    waiting = one.comes(principal(queue_seconds=15.0))
    one.pass_time(14.99)
    assert not waiting.done()
    one.pass_time(0.02)
    late = refusal(waiting)
    assert late.code == "wait_too_long"
    assert late.retry_after_seconds > 0.0
    assert (one.admission.queue_depths, one.admission.queue_tokens) == ({}, 0)


def test_a_turn_and_a_cancellation_in_one_moment_lose_no_place(house: Callable[..., House]) -> None:
    """Whichever comes first; the next in the queue gets it."""
    one = house(ceiling=1)
    first, second, third = (one.comes() for _ in range(3))
    first.result().leave()
    second.cancel()
    one.loop.settle()
    assert second.cancelled()
    assert third.done()
    fourth = one.comes()
    fourth.cancel()
    third.result().leave()
    one.loop.settle()
    assert fourth.cancelled()
    assert one.admission.running == 0


def test_who_leaves_the_queue_lets_those_behind_it_start(house: Callable[..., House]) -> None:
    """A request too large for the room that is left holds up no one once it is cancelled."""
    one = house(ceiling=2)
    one.comes()
    large, small = one.comes(sequences=2), one.comes()
    assert not small.done()
    large.cancel()
    one.loop.settle()
    assert small.done()


def test_closing_refuses_everything_that_waits_and_comes(house: Callable[..., House]) -> None:
    """With its own cause for each; what runs goes on, and nothing starts any more."""
    one = house(ceiling=1)
    first, second, third = one.comes(), one.comes(), one.comes(sequences=3)
    one.admission.close(lambda: Unavailable("The server is shutting down.", code="draining"))
    one.loop.settle()
    assert {refusal(task).code for task in (second, third, one.comes())} == {"draining"}
    assert refusal(second) is not refusal(third)
    assert one.admission.running == 1
    first.result().leave()
    assert (one.admission.running, one.admission.queue_depths) == (0, {})


async def test_time_limits_hold_on_a_real_clock() -> None:
    """A wait of a tenth of a second ends by itself."""
    admission = Admission(settings(time_per_output_token_seconds=1e-6), ceiling=1)
    who, far = principal(queue_seconds=0.1), time.monotonic() + 60.0
    ticket = await admission.admit(who, demand(), Usage(), deadline_at=far)
    begun = time.monotonic()
    with pytest.raises(Busy):
        await admission.admit(who, demand(), Usage(), deadline_at=far)
    assert 0.09 <= time.monotonic() - begun <= 50.0
    ticket.leave()


@pytest.mark.parametrize("seed", [1, 2])
def test_goodput_at_eight_times_what_can_be_served_is_that_of_the_peak(seed: int) -> None:
    """At two, four and eight times at least nine tenths; and all who are served are served in time."""
    goodput = {}
    for load in (0.5, 1, 2, 4, 8):
        arrivals = poisson(3.85 * load, 120.0, seed=seed)
        SimulatedEngine(settings(), pauses=0.002, seed=seed).run(arrivals)
        served = [arrival for arrival in arrivals if arrival.ended_at]
        goodput[load] = sum(arrival.good() for arrival in served) / 120.0
        assert percentile([arrival.time_to_first_token for arrival in served], 0.95) <= 2.0
        expired = [arrival for arrival in arrivals if arrival.refusal and arrival.refused_at > arrival.at]
        assert len(expired) <= 0.02 * len(arrivals)
    assert min(goodput[load] for load in (2, 4, 8)) >= 0.9 * max(goodput.values())


def test_requests_that_use_less_than_they_may_do_not_starve_the_engine() -> None:
    """Bounds of 1,024 tokens and replies of 64: the door learns what replies really are."""
    arrivals = poisson(8.0, 120.0, bound=1024)
    SimulatedEngine(settings()).run(arrivals)
    assert sum(arrival.good() for arrival in arrivals if arrival.at > 60.0) / 60.0 >= 3.0


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
