"""Phases, requests in flight, the drain, and the watch over the engine."""

from __future__ import annotations

import asyncio
import time

import pytest

from jubako import life as life_module
from jubako.engine.port import VitalSigns
from jubako.errors import ClientGone, Unavailable
from jubako.life import Lease, Life, engine_lost, shutting_down
from jubako.vocabulary import Phase


async def _hold(life: Life, released: asyncio.Event, holding: asyncio.Future[Lease]) -> str:
    with life.lease("one") as lease:
        holding.set_result(lease)
        try:
            await released.wait()
        except asyncio.CancelledError:
            return "interrupted"
        return "finished"


async def held(life: Life) -> tuple[asyncio.Task[str], asyncio.Event, Lease]:
    """A request in flight, what lets it finish, and its lease."""
    released, holding = asyncio.Event(), asyncio.get_running_loop().create_future()
    task = asyncio.create_task(_hold(life, released, holding))
    return task, released, await holding


async def test_a_request_with_its_end_is_interrupted_by_its_caller_alone() -> None:
    """What is on record is not changed by a drain or a deadline; a caller who is gone is not waited for."""
    task, _, lease = await held(Life())
    lease.conclude()
    for cause in (shutting_down(), ClientGone()):
        lease.interrupt(cause)
    assert isinstance(lease.cause, ClientGone)
    assert await task == "interrupted"


def test_a_life_goes_from_starting_to_ready_to_draining() -> None:
    """Nothing goes back; readiness says why not."""
    life = Life()
    life.doing("reading")
    assert (life.readiness.ready, life.readiness.reason) == (False, "reading")
    assert life.become_ready()
    life.doing("nothing")
    assert life.readiness.ready
    life.begin_draining()
    assert not life.become_ready()
    assert life.readiness.phase is Phase.DRAINING


def test_failure_is_final() -> None:
    """Neither a drain nor a late start hides it."""
    life = Life()
    life.fail("broken")
    life.begin_draining()
    assert not life.become_ready()
    assert (life.readiness.phase, life.readiness.reason) == (Phase.FAILED, "broken")
    with pytest.raises(Unavailable) as raised:
        life.require_ready()
    assert raised.value.code == "engine_unavailable"


def test_an_engine_that_goes_during_the_drain_went_because_of_it() -> None:
    """The caller hears of the drain; at any other time, of the engine."""
    life = Life()
    life.become_ready()
    assert life.explain(engine_lost()).code == "engine_unavailable"
    life.begin_draining()
    assert life.explain(engine_lost()).code == "draining"


async def test_a_drain_lets_requests_finish() -> None:
    """It ends when the last one does, long before its time."""
    life = Life()
    life.become_ready()
    task, released, _ = await held(life)
    drain = asyncio.create_task(life.drain(drain_seconds=30, grace_seconds=30))
    await asyncio.sleep(0)
    assert (life.in_flight, drain.done()) == (1, False)
    released.set()
    async with asyncio.timeout(90):
        await drain
    assert await task == "finished"
    assert life.in_flight == 0


async def test_a_drain_interrupts_what_outlives_it() -> None:
    """After its time each request in flight is told of the shutdown."""
    life = Life()
    task, _, lease = await held(life)
    async with asyncio.timeout(90):
        await life.drain(drain_seconds=0.02, grace_seconds=5)
    assert await task == "interrupted"
    assert isinstance(lease.cause, Unavailable)
    assert lease.cause.code == "draining"


async def test_a_drain_of_nobody_is_over_at_once() -> None:
    """An idle server goes without waiting."""
    async with asyncio.timeout(90):
        await Life().drain(drain_seconds=30, grace_seconds=30)


async def test_the_first_cause_of_an_interruption_stands() -> None:
    """A caller who left is not told of a drain that came later."""
    task, _, lease = await held(Life())
    first = ClientGone()
    lease.interrupt(first)
    lease.interrupt(shutting_down())
    assert await task == "interrupted"
    assert lease.cause is first


async def test_every_request_gets_a_cause_of_its_own() -> None:
    """An exception that two tasks raise would carry both their tracebacks."""
    life = Life()
    leases = [(await held(life))[2] for _ in range(3)]
    life.interrupt_all(shutting_down)
    assert await life.settled(5)
    assert len({id(lease.cause) for lease in leases}) == 3


async def test_settled_gives_up_in_time() -> None:
    """False, and the request is left alone."""
    life = Life()
    task, released, _ = await held(life)
    assert not await life.settled(0.01)
    released.set()
    assert await task == "finished"


async def test_the_watch_sees_a_dead_engine() -> None:
    """Whatever else it says."""
    signs = VitalSigns(alive=False, unfinished=0, last_step_at=time.monotonic())
    assert await Life().watch(lambda: signs, stall_seconds=60, every_seconds=0.01) == "the engine died"


async def test_the_watch_sees_an_engine_that_stands_still() -> None:
    """Work, but no step for too long."""
    signs = VitalSigns(alive=True, unfinished=3, last_step_at=time.monotonic() - 100)
    reason = await Life().watch(lambda: signs, stall_seconds=60, every_seconds=0.01)
    assert "3 unfinished requests and took no step for 100 s" in reason


@pytest.mark.parametrize(("unfinished", "age"), [(0, 1000), (5, 0)], ids=["idle", "busy"])
async def test_the_watch_leaves_a_sound_engine_alone(unfinished: int, age: float) -> None:
    """Idle for long is no fault, and neither is work that goes on."""
    signs = VitalSigns(alive=True, unfinished=unfinished, last_step_at=time.monotonic() - age)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await Life().watch(lambda: signs, stall_seconds=60, every_seconds=0.005)


async def test_a_pause_of_this_process_is_not_held_against_the_engine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its steps meanwhile have yet to be read; one that stands still is noticed all the same, a little later."""
    monkeypatch.setattr(life_module, "STOOD_STILL_SECONDS", 0.2)
    signs = VitalSigns(alive=True, unfinished=1, last_step_at=time.monotonic())
    looks: list[float] = []

    def pulse() -> VitalSigns:
        looks.append(time.monotonic())
        return signs

    watch = asyncio.create_task(Life().watch(pulse, stall_seconds=1, every_seconds=0.01))
    await asyncio.sleep(0)
    time.sleep(1.5)  # noqa: ASYNC251 - the pause
    before = len(looks)
    while len(looks) < before + 2:
        await asyncio.sleep(0)
    assert not watch.done()
    assert "this process stood still" in caplog.text
    assert "took no step" in await watch
