"""Whose turn it is: counters, weights, priorities, ageing, the queue's parts; and what tenants get in the end."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from jubako.gate.admission.fairness import Fairness
from jubako.gate.admission.request import Request
from jubako.vocabulary import Principal, Usage
from tests.simulated_engine import Arrival, SimulatedEngine, demand, percentile, poisson, principal, settings

NUMBERS = itertools.count()


def fairness(*, ageing: float = 5.0, requests: int = 100, tokens: int = 100_000) -> Fairness:
    """An empty queue."""
    return Fairness(ageing_seconds=ageing, queue_requests=requests, queue_tokens=tokens)


def put(queue: Fairness, who: Principal, *, output: int = 100, now: float = 0.0) -> Request:
    """Queue a request of so many tokens."""
    request = Request(next(NUMBERS), who, demand(prompt=0, output=output), Usage(), now, output, 0.25)
    queue.arrive(request, now)
    return request


def serve(queue: Fairness, turns: int, *, now: float = 0.0) -> Counter[str]:
    """Start and end so many requests; how many of each tenant."""
    served: Counter[str] = Counter()
    for _ in range(turns):
        request = queue.next(now)
        assert request is not None
        queue.start(request, now)
        queue.end(request, 0.0, now)
        served[request.principal.tenant] += 1
    return served


def test_tokens_are_shared_by_weight_whatever_the_length_of_requests() -> None:
    """A tenant of twice the weight gets twice the tokens; one of short requests gets more of them."""
    queue = fairness(requests=1000)
    for _ in range(100):
        put(queue, principal("heavy", weight=2.0))
        put(queue, principal("light"))
        put(queue, principal("short"), output=25)
    served = serve(queue, 80)
    assert served["heavy"] == pytest.approx(2 * served["light"], abs=2)
    assert served["short"] == pytest.approx(4 * served["light"], abs=4)


def test_an_idle_tenant_gains_no_credit_and_keeps_no_debt_of_others() -> None:
    """It comes back at the counter last served: one turn now, then its share."""
    queue = fairness()
    put(queue, principal("idle"))
    serve(queue, 1)
    for _ in range(40):
        put(queue, principal("busy"))
    serve(queue, 20)
    for _ in range(10):
        put(queue, principal("idle"))
    assert serve(queue, 1) == {"idle": 1}
    assert serve(queue, 10)["busy"] == 5


def test_charges_are_corrected_when_a_request_ends() -> None:
    """Who used less than expected is served sooner."""
    queue = fairness()
    first, other = put(queue, principal("a")), put(queue, principal("b"))
    queue.start(first, 0.0)
    queue.start(other, 0.0)
    put(queue, principal("b"))
    put(queue, principal("a"))
    queue.end(first, -90.0, 0.0)
    queue.end(other, 0.0, 0.0)
    assert serve(queue, 1) == {"a": 1}


def test_lower_priorities_go_first_until_the_others_have_aged() -> None:
    """Strict at first; then the aged one competes as an equal, without credit for its wait."""
    queue = fairness(ageing=5.0)
    put(queue, principal("low", priority=2), now=0.0)
    for _ in range(10):
        put(queue, principal("high", priority=0), now=0.0)
    assert serve(queue, 3, now=4.0) == {"high": 3}
    for _ in range(3):
        put(queue, principal("low", priority=2), now=9.0)
    assert serve(queue, 3, now=9.0) == {"high": 3}
    assert serve(queue, 2, now=10.0)["low"] == 1
    assert serve(queue, 2, now=10.0) == {"high": 2}


def test_ageing_does_not_pass_equals() -> None:
    """A flood that waits long is no older than a light tenant's fresh request: nobody better is waiting."""
    queue = fairness(ageing=1.0)
    put(queue, principal("best", priority=0), now=0.0)
    serve(queue, 1)
    for _ in range(20):
        put(queue, principal("flood"), now=0.0)
    serve(queue, 2, now=8.0)
    put(queue, principal("light"), now=8.0)
    assert serve(queue, 1, now=8.0) == {"light": 1}


def test_everything_is_served_in_the_end() -> None:
    """Also the lowest priority behind a better one that never ends."""
    queue = fairness(ageing=1.0)
    put(queue, principal("low", priority=9), now=0.0)
    now = 0.0
    while True:
        now += 0.1
        put(queue, principal("high", priority=0), now=now)
        put(queue, principal("high", priority=0), now=now)
        if serve(queue, 1, now=now)["low"]:
            break
    assert now < 10.0


def test_parts_of_the_queue_go_by_weight() -> None:
    """The fuller of requests and tokens counts; a single request is always within its tenant's part."""
    queue = fairness(requests=10, tokens=1000)
    for _ in range(8):
        put(queue, principal("flood"), output=10)
    small, large = put(queue, principal("small"), output=10), put(queue, principal("large"), output=900)
    assert queue.most_crowding().tenant == "large"
    assert not queue.within_part(queue.flow(put(queue, principal("flood"), output=10)))
    assert queue.within_part(queue.flow(small))
    queue.withdraw(large, 0.0)
    assert queue.most_crowding().tenant == "flood"


@pytest.mark.parametrize(("rate_a", "rate_b"), [(8.0, 8.0), (40.0, 4.0)])
def test_two_backlogged_equals_get_the_same_tokens(rate_a: float, rate_b: float) -> None:
    """Within a tenth, however much more one of them asks for."""
    engine = SimulatedEngine(settings())
    a = poisson(rate_a, 200.0, who=principal("a"), seed=1)
    b = poisson(rate_b, 200.0, who=principal("b"), seed=2)
    engine.run([*a, *b])
    tokens = [sum(one.usage.tokens for one in some if 20.0 < one.started_at < 180.0) for some in (a, b)]
    assert max(tokens) <= 1.1 * min(tokens)


def first_tokens(some: list[Arrival]) -> float:
    """Seconds to the first token at p95."""
    return percentile([one.time_to_first_token for one in some if one.ended_at], 0.95)


@pytest.mark.parametrize(("target", "rate"), [(0.15, 0.4), (0.15, 0.8), (0.1, 0.8), (0.08, 0.4)])
def test_a_light_tenant_hardly_waits_while_another_floods(target: float, rate: float) -> None:
    """A comes at ten times B's rate: B is let in at once, all but one in twenty, and hardly ever refused."""
    engine = SimulatedEngine(settings(time_per_output_token_seconds=target))
    a = poisson(10 * rate, 200.0, who=principal("a"), seed=6)
    b = poisson(rate, 200.0, who=principal("b"), seed=5)
    engine.run([*a, *b])
    assert percentile([one.started_at - one.at for one in b if one.ended_at], 0.95) < target
    assert sum(one.refusal is not None for one in b) <= 0.03 * len(b)


def test_places_left_for_others_do_not_hold_up_whom_they_are_left_for() -> None:
    """On an engine that holds its pace with six sequences, B, which has one at a time, is let in within a step."""
    waits: list[float] = []
    for seed in range(4):
        a = poisson(2.6, 200.0, who=principal("a"), prompt=15, seed=seed + 100)
        b = poisson(0.26, 200.0, who=principal("b"), prompt=15, seed=seed)
        admission = settings(time_per_output_token_seconds=0.04)
        SimulatedEngine(admission, coefficients=(0.022, 0.0021, 0.0025), seed=seed).run([*a, *b])
        waits += [one.started_at - one.at for one in b if one.ended_at]
    assert percentile(waits, 0.95) < 0.04


def test_a_light_tenants_peaks_pass_a_flood_that_has_its_share() -> None:
    """B has one sequence at a time on average, and now and then four at once: more than its half of six."""
    waits: list[float] = []
    for seed in range(8):
        a = poisson(6.2, 140.0, who=principal("a"), prompt=25, bound=96, seed=seed + 100)
        b = poisson(0.62, 140.0, who=principal("b"), prompt=25, bound=96, seed=seed)
        chance = random.Random(seed)
        for one in (*a, *b):
            one.generates = chance.randint(32, 96)
        admission = settings(time_per_output_token_seconds=0.0236)
        SimulatedEngine(admission, coefficients=(0.0148, 0.00095, 0.0009), seed=seed).run([*a, *b])
        waits += [one.started_at - one.at for one in b if one.ended_at]
    assert percentile(waits, 0.97) < 0.0236


@pytest.mark.parametrize("rate", [2.0, 5.0, 10.0])
def test_a_light_tenants_first_token_comes_almost_as_when_it_is_alone(rate: float) -> None:
    """Within 1.5 times at p95, on an engine whose step at the limit is itself no longer than 1.5 times one alone."""
    admission = settings(time_per_output_token_seconds=0.03)
    wide = (0.02, 0.0001, 0.00002)
    alone = poisson(rate, 60.0, who=principal("b"), seed=5)
    SimulatedEngine(admission, ceiling=256, coefficients=wide).run(alone)
    beside = poisson(rate, 60.0, who=principal("b"), seed=5)
    flood = poisson(10 * rate, 60.0, who=principal("a"), seed=6)
    SimulatedEngine(admission, ceiling=256, coefficients=wide).run([*flood, *beside])
    assert first_tokens(beside) <= 1.5 * first_tokens(alone)


def test_a_newcomer_is_not_behind_what_another_priority_was_served() -> None:
    """Counters are compared within a priority: who was served above it says nothing of what is fair below."""
    queue = fairness(ageing=1000)
    for _ in range(50):
        put(queue, principal("urgent", priority=0))
    serve(queue, 50)
    for _ in range(200):
        put(queue, principal("patient", priority=5))
    for _ in range(20):
        put(queue, principal("late", priority=5))
    served = serve(queue, 20)
    assert served["late"] == pytest.approx(10, abs=1)


def test_an_aged_tenant_is_not_starved_by_its_return() -> None:
    """What it was lent among those above it is taken back when it stands among its equals again."""
    queue = fairness(ageing=5)
    for _ in range(50):
        put(queue, principal("urgent", priority=0))
    serve(queue, 50)
    for one in ("a", "b"):
        for _ in range(30):
            put(queue, principal(one, priority=1), now=0.0)
    served: Counter[str] = Counter()
    for turn in range(60):
        served += serve(queue, 1, now=turn * 1.0)
        if turn == 29:
            assert served["a"] == pytest.approx(served["b"], abs=4)
    assert served == {"a": 30, "b": 30}
