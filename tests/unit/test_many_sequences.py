"""Requests of many sequences (choices, prompts) in the queue: they get their turn, and keep nobody from theirs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as some

from jubako.gate.admission.request import Request
from jubako.gate.admission.scheduler import PATIENCE_STEPS, RESERVE
from tests.simulated_engine import Arrival, SimulatedEngine, demand, poisson, principal, settings


class Watched(SimulatedEngine):
    """Notes for how many steps in a row places were free, something waited, and nothing started."""

    idle_steps = 0
    longest_idle_steps = 0

    def _started(self, request: Request) -> None:
        self.idle_steps = 0
        super()._started(request)

    def _begin_step(self) -> None:
        # What must be kept free for tenants that do not wait is at most this part.
        free = self.scheduler.running < self.scheduler.capacity.limit // RESERVE
        self.idle_steps = self.idle_steps + 1 if free and self.scheduler.waiting else 0
        self.longest_idle_steps = max(self.longest_idle_steps, self.idle_steps)
        super()._begin_step()


def wide(
    rate: float, seconds: float, sequences: int, *, tenant: str = "wide", queue_seconds: float = 1.5
) -> list[Arrival]:
    """Requests of so many sequences each."""
    who = principal(tenant, queue_seconds=queue_seconds)
    arrivals = poisson(rate, seconds, who=who, seed=7)
    return [Arrival(one.at, who, demand(sequences=sequences), 64) for one in arrivals]


@pytest.mark.parametrize("target", [0.04, 0.15])
def test_an_idle_engine_takes_a_request_of_any_size(target: float) -> None:
    """Above the limit that was found, and above the engine's own."""
    engine = SimulatedEngine(settings(time_per_output_token_seconds=target), ceiling=8)
    alone = [Arrival(60.0 * number, principal(), demand(sequences=16), 20) for number in range(3)]
    engine.run(alone)
    assert all(one.started_at == one.at and one.ended_at for one in alone)


@pytest.mark.parametrize("target", [0.06, 0.1, 0.15])
def test_a_wide_request_gets_in_beside_a_steady_stream_of_small_ones(target: float) -> None:
    """The small ones keep the engine full and hardly wait; the wide tenant, which asks for little, gets in as well."""
    engine = Watched(settings(time_per_output_token_seconds=target))
    small = poisson(4.0, 200.0, who=principal("small"), seed=3)
    large = wide(0.05, 200.0, 16, queue_seconds=10.0)
    engine.run([*small, *large])
    assert sum(one.ended_at > 0 for one in large) >= 0.8 * len(large)
    assert engine.longest_idle_steps <= PATIENCE_STEPS + 1


@pytest.mark.parametrize("target", [0.06, 0.1, 0.15])
@pytest.mark.parametrize("queue_seconds", [1.5, 60.0])
def test_a_flood_of_wide_requests_leaves_small_ones_their_share(target: float, queue_seconds: float) -> None:
    """Tokens served while both want more than there is differ by no more than one wide request's and a fifth."""
    engine = Watched(settings(time_per_output_token_seconds=target))
    small = poisson(8.0, 200.0, who=principal("small"), seed=3)
    large = wide(4.0, 200.0, 16, queue_seconds=queue_seconds)
    engine.run([*small, *large])
    tokens = [sum(one.usage.tokens for one in some_ if 20.0 < one.started_at < 180.0) for some_ in (small, large)]
    assert max(tokens) <= 1.2 * min(tokens) + 16 * 84
    assert engine.longest_idle_steps <= PATIENCE_STEPS + 1


def test_those_who_wait_behind_a_wide_request_wait_for_one_place_not_for_all() -> None:
    """A long reply that runs meanwhile does not keep the rest of the engine empty."""
    engine = SimulatedEngine(settings(), ceiling=8)
    warm = poisson(6.0, 30.0, who=principal("warm"), seed=1)
    who = principal("a", queue_seconds=1e6)
    long = Arrival(60.0, who, demand(output=5000), 5000)
    large = Arrival(61.0, principal("b", queue_seconds=1e6), demand(sequences=8), 64)
    behind = Arrival(61.5, principal("c", queue_seconds=1e6), demand(), 64)
    engine.run([*warm, long, large, behind], until=120.0)
    assert 0 < large.started_at - large.at < 5.0
    assert 0 < behind.started_at - behind.at < 30.0


@effort(max_examples=60, deadline=None)
@given(
    seed=some.integers(0, 2**32),
    target=some.sampled_from([0.04, 0.06, 0.1, 0.15]),
    ceiling=some.sampled_from([1, 4, 8, 32]),
    sequences=some.lists(some.integers(1, 16), min_size=2, max_size=5),
    priorities=some.lists(some.integers(0, 2), min_size=5, max_size=5),
)
def test_everything_is_served_whatever_its_size(
    seed: int, target: float, ceiling: int, sequences: list[int], priorities: list[int]
) -> None:
    """Whoever is patient gets in, and places stay free for no longer than the patience of those who wait."""
    engine = Watched(settings(time_per_output_token_seconds=target), ceiling=ceiling)
    chance = random.Random(seed)
    arrivals = []
    for number, size in enumerate(sequences):
        who = principal(f"t{number}", priority=priorities[number], queue_seconds=1e6)
        for _ in range(12):
            generates = chance.choice([1, 5, 30, 200])
            one = Arrival(
                chance.uniform(0, 20), who, demand(output=200, sequences=size), generates, deadline_seconds=1e6
            )
            arrivals.append(one)
    engine.run(arrivals)
    assert all(one.ended_at for one in arrivals)
    assert engine.longest_idle_steps <= PATIENCE_STEPS + 1
