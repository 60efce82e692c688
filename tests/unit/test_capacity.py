"""The running limit is found from steps, holds the pace, and follows the machine."""

from __future__ import annotations

import random

import pytest

from jubako.gate.admission.capacity import Capacity, StepModel
from jubako.vocabulary import Step
from tests.simulated_engine import SimulatedEngine, poisson, settings

MIX = 20 / 64
"""Prompt tokens for each output token of `poisson`'s requests."""


FAST = (0.0155, 0.00095, 0.0009)
"""The same of a faster machine, where many sequences cost little more than one."""


def true_limit(target: float, factor: float = 1.0) -> float:
    """What the simulated engine can run within the target."""
    return (target - 0.036 * factor) / ((0.0029 + 0.001 * MIX) * factor)


def step(running: int, seconds: float, prompt_tokens: int = 0) -> Step:
    """A step as the engine would report it."""
    return Step(0.0, seconds, running, prompt_tokens, running)


def test_the_model_finds_the_three_coefficients() -> None:
    """From steps of every kind, with noise and pauses."""
    chance, model = random.Random(3), StepModel()
    for _ in range(500):
        sequences, prompt = chance.randint(1, 32), chance.choice((0, 0, 0, 20, 100))
        seconds = (0.036 + 0.0029 * sequences + 0.001 * prompt) * chance.gauss(1.0, 0.05)
        model.observe(sequences, prompt, seconds + (chance.random() < 0.01))
    base, each, prompt_seconds = model.coefficients
    assert base == pytest.approx(0.036, rel=0.25)
    assert each == pytest.approx(0.0029, rel=0.25)
    assert prompt_seconds == pytest.approx(0.001, rel=0.25)


def test_steps_that_are_all_alike_teach_the_level_and_forget_nothing_else() -> None:
    """With n at one number for long, its price is not learnt anew, and the estimate does not run away."""
    chance, model = random.Random(4), StepModel()
    for _ in range(300):
        sequences = chance.randint(1, 32)
        model.observe(sequences, 0, 0.036 + 0.0029 * sequences)
    for _ in range(5_000):
        model.observe(16, 0, (0.036 + 0.0029 * 16) * chance.gauss(1.0, 0.02))
    assert model.predict(16, 0) == pytest.approx(0.036 + 0.0029 * 16, rel=0.03)
    assert model.predict(32, 0) == pytest.approx(0.036 + 0.0029 * 32, rel=0.25)


def test_no_coefficient_is_negative_whatever_the_steps_say() -> None:
    """Also when more sequences seem to be faster."""
    chance, model = random.Random(5), StepModel()
    for _ in range(500):
        sequences = chance.randint(1, 32)
        model.observe(sequences, chance.randint(0, 9), 0.2 / sequences * chance.lognormvariate(0.0, 1.0))
        assert min(model.coefficients) >= 0.0


def test_it_starts_small_and_grows_only_where_it_is_used() -> None:
    """One sequence at a time, however fast, proves nothing about thirty."""
    capacity = Capacity(target_seconds=0.15, ceiling=256)
    assert capacity.limit == 2
    for _ in range(500):
        capacity.observe(step(1, 0.04))
    assert capacity.limit == 2
    for _ in range(10):
        capacity.observe(step(2, 0.043))
    assert capacity.limit == 4


def test_never_below_two_and_never_above_the_ceiling() -> None:
    """Whatever the pace: beside a single sequence, all others would wait for the whole of it."""
    slow, fast = (Capacity(target_seconds=0.05, ceiling=8) for _ in range(2))
    for _ in range(200):
        slow.observe(step(1, 3.0))
        fast.observe(step(fast.limit, 0.001))
    assert (slow.limit, fast.limit) == (2, 8)
    assert Capacity(target_seconds=0.05, ceiling=1).limit == 1


def test_idle_gaps_and_a_pause_change_nothing() -> None:
    """A step after an idle gap has no duration; a single step of seconds is a pause of the machine."""
    capacity = Capacity(target_seconds=0.1, ceiling=64)
    for _ in range(300):
        capacity.observe(step(capacity.limit, 0.036 + 0.0029 * capacity.limit))
    settled = capacity.limit
    capacity.observe(step(settled, 5.0))
    for _ in range(5):
        capacity.observe(step(settled, 0.0))
    assert abs(capacity.limit - settled) <= 1


def test_a_process_that_stands_still_in_front_of_its_engine_takes_no_room_from_it() -> None:
    """It is told of many steps at once then, as if they had taken no time."""
    engine = SimulatedEngine(settings(time_per_output_token_seconds=0.0328), coefficients=FAST)
    engine.stand_still(23.0, 1.4)
    engine.run(poisson(11.0, 60.0, prompt=25))
    limits = [(one.at, limit) for one, limit in zip(engine.steps, engine.limits, strict=True) if 10.0 < one.at < 55.0]
    assert min(limit for _, limit in limits) >= 9
    assert {limit for at, limit in limits if at < 23.0 or at > 27.5} <= set(range(9, 16))


def test_steps_that_seemed_to_take_no_time_are_soon_forgotten() -> None:
    """Whatever made them seem so: they must not weigh more than those that are as long as they should be."""
    chance, capacity = random.Random(8), Capacity(target_seconds=0.0328, ceiling=32)
    base, each, prompt = FAST

    def work(steps: int, seconds: float | None = None) -> None:
        for number in range(steps):
            tokens = 25 if number % 5 == 0 else 0
            took = (base + each * capacity.limit + prompt * tokens) * chance.gauss(1.0, 0.04)
            capacity.observe(step(capacity.limit, seconds or took, tokens))

    work(500)
    settled = capacity.limit
    work(60, 0.0002)
    work(300)
    assert capacity.limit == pytest.approx(settled, abs=3)


@pytest.mark.parametrize("target", [0.08, 0.1, 0.15])
def test_the_limit_is_what_holds_the_pace(target: float) -> None:
    """Found under overload within a tenth, prompts' interference included, with noise and pauses."""
    engine = SimulatedEngine(settings(time_per_output_token_seconds=target), ceiling=64, pauses=0.002)
    arrivals = poisson(16.0, 100.0)
    engine.run(arrivals)
    assert engine.limits[-200] == pytest.approx(true_limit(target), rel=0.12)
    late = [arrival for arrival in arrivals if arrival.ended_at and 20.0 < arrival.at < 90.0]
    assert sum(arrival.time_per_output_token for arrival in late) / len(late) <= 1.05 * target


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_it_follows_a_machine_that_becomes_slower_or_faster(factor: float) -> None:
    """Within sixty steps, and stays there."""
    engine = SimulatedEngine(settings(time_per_output_token_seconds=0.1), ceiling=64)
    changed: list[int] = []

    def change() -> None:
        engine.coefficients = tuple(factor * part for part in engine.coefficients)  # type: ignore[assignment]
        changed.append(len(engine.steps))

    engine.at(60.0, change)
    engine.run(poisson(16.0, 140.0))
    assert engine.limits[changed[0] - 1] == pytest.approx(true_limit(0.1), rel=0.12)
    for steps in (60, 100, 200, 300):
        assert engine.limits[changed[0] + steps] == pytest.approx(true_limit(0.1, factor), rel=0.15, abs=1.0)


def test_a_model_of_the_wrong_shape_still_holds_the_pace() -> None:
    """The measured pace corrects it at the point of work: here a step grows with the square of n."""
    engine = SimulatedEngine(settings(), ceiling=64)
    engine.shape = lambda sequences, prompt: 0.02 + 0.0001 * sequences**2 + 0.001 * prompt
    engine.run(poisson(16.0, 100.0))
    working = engine.steps[200:-200]
    assert sum(one.seconds for one in working) / len(working) == pytest.approx(0.15, rel=0.12)


def test_a_long_stream_without_prompts_leaves_what_a_prompt_costs() -> None:
    """What its sums have forgotten to the last bit is no measurement."""
    chance, model = random.Random(6), StepModel()
    for _ in range(500):
        prompt = chance.choice((0, 0, 0, 300))
        model.observe(4, prompt, 0.01 + prompt * 1e-4 + chance.random() * 1e-3)
    learned = model.coefficients[2]
    for _ in range(80_000):
        model.observe(4, 0, 0.01 + chance.random() * 1e-3)
        assert model.coefficients[2] == pytest.approx(learned, rel=0.5)
