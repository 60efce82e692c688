"""Admission as the pipeline uses it: turns, refusals, time limits, cancellation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jubako.errors import Busy, DeadlineExceeded, Refusal, Unavailable
from jubako.gate.admission import Admission, Ticket
from jubako.vocabulary import Usage
from tests.simulated_engine import demand, principal, settings
from tests.virtual_admission import House


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
