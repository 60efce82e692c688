"""Expected ends, rounds, what requests really use, and whether Retry-After is true."""

from __future__ import annotations

import random

import pytest

from jubako.gate.admission.forecast import Forecast, Lengths
from jubako.gate.admission.request import Request
from jubako.vocabulary import Usage
from tests.simulated_engine import Arrival, SimulatedEngine, demand, poisson, principal, settings


def request(number: int, expected: int, *, sequences: int = 1, bound: int = 1000) -> Request:
    """A request with that expectation."""
    return Request(number, principal(), demand(output=bound, sequences=sequences), Usage(), 0.0, expected, 0.25)


def test_the_kth_in_the_queue_starts_at_the_kth_end() -> None:
    """Not after k mean times between ends."""
    forecast = Forecast()
    for number, expected in enumerate((10, 40, 20)):
        forecast.start(request(number, expected))
    first, second, third = (forecast.steps_until(k, room=0, service_steps=100.0) for k in (1, 2, 3))
    assert (first, second, third) == (10, 21, 41)
    assert forecast.steps_until(5, room=0, service_steps=100.0) == 121
    assert forecast.steps_until(1, room=1, service_steps=100.0) == 0
    # One more runs than should: the first end lets nobody in.
    assert forecast.steps_until(1, room=-1, service_steps=100.0) == 21


def test_a_request_with_choices_leaves_all_its_places_at_once() -> None:
    """Four sequences are four entries, at the same step."""
    forecast, wide = Forecast(), request(1, 30, sequences=4)
    forecast.start(wide)
    assert [forecast.steps_until(k, room=0, service_steps=9.0) for k in (1, 4, 5)] == [30, 30, 39]
    forecast.end(wide)
    assert forecast.running == 0


def test_an_overdue_request_is_expected_to_take_as_long_again_within_its_bound() -> None:
    """It is not counted as about to end for ever."""
    forecast, late = Forecast(), request(1, 10, bound=25)
    forecast.start(late)
    for generated in range(1, 12):
        late.usage.generated_tokens = generated
        forecast.advance()
    assert forecast.steps_until(1, room=0, service_steps=1.0) == 10


def test_what_requests_really_use_is_learnt_for_each_tenant() -> None:
    """At first the bound; then the tenant's own ratio; a new tenant's is that of all."""
    lengths = Lengths()
    assert lengths.expect("a", 100) == 100
    for _ in range(50):
        lengths.learn("a", 100, 20)
    assert lengths.expect("a", 100) == pytest.approx(20, abs=2)
    assert 20 <= lengths.expect("new", 100) <= 30


@pytest.mark.parametrize("target", [0.08, 0.15])
@pytest.mark.parametrize(("queue_requests", "queue_seconds"), [(1000, 1.5), (1000, 10.0), (5, 10.0)])
@pytest.mark.parametrize("burst", [80, 300])
def test_retry_after_is_true_within_a_factor_of_two(
    target: float, queue_requests: int, queue_seconds: float, burst: int
) -> None:
    """After a burst, the last one refused is taken in when it was told, if nobody else comes."""

    def world() -> tuple[SimulatedEngine, list[Arrival], list[Arrival]]:
        engine = SimulatedEngine(settings(time_per_output_token_seconds=target, queue_requests=queue_requests))
        who = principal(queue_seconds=queue_seconds)
        return engine, poisson(4.0, 30.0), [Arrival(40.0, who, demand(), 64) for _ in range(burst)]

    def accepted_after(seconds: float) -> bool:
        engine, before, together = world()
        probe = Arrival(40.0 + seconds, together[0].principal, demand(), 64)
        engine.run([*before, *together, probe], until=40.0 + seconds)
        return probe.refusal is None

    engine, before, together = world()
    engine.run([*before, *together])
    refusal = together[-1].refusal
    assert refusal is not None
    told = refusal.retry_after_seconds
    truth = next(tenths / 10 for tenths in range(1, 600) if accepted_after(tenths / 10))
    assert told / 2 <= truth <= 2 * told


def test_a_long_request_is_let_in_as_readily_as_a_short_one() -> None:
    """How long it would itself take is no part of its wait."""
    engine = SimulatedEngine(settings(time_per_output_token_seconds=0.0215), coefficients=(0.0148, 0.00095, 0.0009))
    arrivals, chance = poisson(40.0, 100.0, prompt=25), random.Random(3)
    for one in arrivals:
        one.generates = chance.randint(32, 96)
        one.demand = demand(prompt=25, output=one.generates)
    engine.run(arrivals)
    lengths = [one.generates for one in arrivals if one.ended_at and one.at > 10.0]
    assert sum(lengths) / len(lengths) == pytest.approx(64.0, rel=0.05)
