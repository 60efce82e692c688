"""Steps are as long as the engine says, unless this process is what makes them long."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from jubako.engine.step_clock import StepClock
from jubako.vocabulary import Route, Step, Stream
from tests.caller import call_of
from tests.scripted_core import encode, front_end

PACE = 0.03


def durations(*told_at: float) -> list[float]:
    """Of steps that end one `PACE` after the other, and are told of at these times."""
    clock = StepClock()
    return [clock.seconds(ended_at=number * PACE, told_at=at) for number, at in enumerate(told_at)]


def test_steps_that_are_told_of_late_and_at_once_took_their_time() -> None:
    """A pause is counted in the one step that it held up."""
    late = 40 * PACE
    on_time = [number * PACE + 0.001 for number in range(10)]
    seconds = durations(*on_time, *[late] * 31, *(number * PACE + 0.001 for number in range(41, 60)))
    assert seconds[0] == 0.0
    assert seconds[1:10] == pytest.approx([PACE] * 9)
    assert seconds[10] == pytest.approx(late - 9 * PACE, rel=0.01)
    assert seconds[11:] == pytest.approx([PACE] * 49)


def test_a_process_slower_than_its_engine_has_steps_of_its_own_length() -> None:
    """Else more and more would be let in, and nobody would see that their tokens come late."""
    seconds = durations(*(number * 2 * PACE for number in range(200)))
    assert seconds[1:] == pytest.approx([2 * PACE] * 199, rel=0.05)


def test_a_clock_that_goes_back_gives_no_negative_time() -> None:
    """Whatever the engine says."""
    clock = StepClock()
    clock.seconds(ended_at=5.0, told_at=5.0)
    assert clock.seconds(ended_at=4.0, told_at=4.0) == 0.0


@pytest.mark.engine
async def test_admission_hears_how_long_the_engine_took_for_steps_that_piled_up(model_folder: Path) -> None:
    """Through vLLM's front end, which tells of all of them at once after a pause."""
    engine, core = await front_end(model_folder)
    steps: list[Step] = []
    engine.listen(steps.append)
    came = asyncio.Event()
    core.came = lambda _: came.set()
    try:
        body = {"messages": [{"role": "user", "content": "Tell me."}], "max_tokens": 20, "stream": True}
        reply = await engine.answer(call_of(Route.CHAT, body))
        assert isinstance(reply, Stream)
        reading = asyncio.create_task(_read(reply))
        await came.wait()
        (name,) = core.requests
        (token, *_) = encode(engine, " noodle")
        begun = time.monotonic() - 20 * PACE
        for number in range(20):
            last = {name: ("length", None)} if number == 19 else None
            core.step({name: [token]}, finish=last, at=begun + number * PACE)
        await reading
    finally:
        await engine.close(0)
    assert len(steps) == 20
    assert [step.seconds for step in steps[2:]] == pytest.approx([PACE] * 18, rel=0.01)


async def _read(reply: Stream) -> None:
    async for _ in reply.events:
        pass
