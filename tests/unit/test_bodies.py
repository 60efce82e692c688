"""The bound on bytes of bodies that are held at one time: at the edge, and in any order of comings and goings."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as some

from jubako.boundary.bodies import LEAST_WAIT_SECONDS, Bodies, Room
from jubako.errors import Busy
from tests.boundary_limits import limited
from tests.caller import ASKED, Caller, ended, policy, ready_pipeline
from tests.scripted_engine import ScriptedEngine, hangs


def begun(size: int, **headers: str) -> Caller:
    """A caller that sends no more than the first byte of a body of `size`."""
    caller = Caller(body_follows=True, headers={"content-length": str(size)} | headers)
    caller.send_body(b"{", more=True)
    return caller


PATIENT = policy(limited(body_bytes=2048, body_seconds=60))


async def held(bodies: Bodies, size: int) -> None:
    """Wait until so much is held."""
    async with asyncio.timeout(90):
        while bodies.held != size:
            await asyncio.sleep(0)


async def test_a_body_beyond_the_room_is_refused_unread() -> None:
    """429 with the time to come back, before a byte of it came; whoever is in goes on."""
    engine, bodies = ScriptedEngine(), Bodies(1500)
    pipeline = ready_pipeline(engine, bodies=bodies, given=PATIENT)
    first = Caller(body_follows=True, headers={"content-length": "800"})
    task = first.begin(pipeline)
    await held(bodies, 800)
    second = await Caller(body_follows=True, headers={"content-length": "800"}).call(pipeline)
    assert (second.status, second.error["code"], second.error["type"]) == (429, "queue_full", "rate_limit_error")
    assert second.headers["x-should-retry"] == "true"
    assert 1000 * LEAST_WAIT_SECONDS <= int(second.headers["retry-after-ms"]) <= 120_000
    assert second.headers["connection"] == "close"
    assert bodies.held == 800
    first.send_body(json.dumps(ASKED).encode().ljust(800))
    assert (await task).status == 200
    assert bodies.held == 0


async def test_a_body_of_unknown_size_is_counted_as_it_comes() -> None:
    """And refused when it is too many bytes, with what it held given back."""
    bodies = Bodies(1500)
    pipeline = ready_pipeline(ScriptedEngine(), bodies=bodies, given=PATIENT)
    first = begun(600)
    task = first.begin(pipeline)
    await held(bodies, 600)
    second = Caller(body_follows=True, headers={"transfer-encoding": "chunked"})
    refused = second.begin(pipeline)
    second.send_body(b"x" * 100, more=True)
    await held(bodies, 700)
    second.send_body(b"x" * 900, more=True)
    await refused
    assert (second.status, second.error["code"]) == (429, "queue_full")
    assert bodies.held == 600
    first.leave()
    await ended(task)
    assert bodies.held == 0


async def test_a_body_that_is_alone_has_room_whatever_its_size() -> None:
    """Its own limit is the bound then."""
    bodies = Bodies(10)
    caller = await Caller(ASKED).call(ready_pipeline(ScriptedEngine(), bodies=bodies))
    assert caller.status == 200
    assert bodies.held == 0


async def test_room_is_given_back_whatever_becomes_of_the_body() -> None:
    """Not JSON, too large, too slow, a caller who leaves, a task that is cancelled."""
    bodies = Bodies(1 << 20)
    pipeline = ready_pipeline(ScriptedEngine(), bodies=bodies, given=policy(deadline_seconds=600))
    for caller, status in (
        (Caller(b"{"), 400),
        (Caller(b" " * 4096, headers={"transfer-encoding": "chunked"}), 413),
        (begun(500), 408),
        (begun(500, **{"x-request-timeout-ms": "50"}), 504),
    ):
        assert (await caller.call(pipeline)).status == status
        assert bodies.held == 0
    for end in (Caller.leave, lambda _: None):
        caller = begun(500)
        task = caller.begin(pipeline)
        await held(bodies, 500)
        end(caller)
        task.cancel()
        await ended(task)
        assert bodies.held == 0


async def test_a_request_that_waits_holds_no_body() -> None:
    """What is left of it is bounded by the queue."""
    engine, bodies = ScriptedEngine(hangs()), Bodies(1500)
    caller = Caller(ASKED)
    task = caller.begin(ready_pipeline(engine, bodies=bodies))
    await engine.asked.wait()
    assert bodies.held == 0
    caller.leave()
    await ended(task)


async def test_a_body_that_outlasts_the_deadline_is_a_timeout() -> None:
    """504, to be tried again; 408 is for a body that outlasts its own limit."""
    given_ = policy(deadline_seconds=600)
    assert given_.limits.body_seconds > 0.05
    caller = await begun(500, **{"x-request-timeout-ms": "50"}).call(ready_pipeline(ScriptedEngine(), given=given_))
    assert (caller.status, caller.error["code"], caller.error["type"]) == (504, "deadline_exceeded", "timeout_error")
    assert caller.headers["x-should-retry"] == "true"
    longer = {"x-request-timeout-ms": "300000"}
    caller = await begun(500, **longer).call(ready_pipeline(ScriptedEngine(), given=given_))
    assert (caller.status, caller.error["code"]) == (408, "body_timeout")


def test_a_tenant_leaves_as_much_as_it_holds() -> None:
    """So that a newcomer finds room however many bodies one tenant sends."""
    bodies = Bodies(1000)
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(bodies.room("a")).require(100)
        with pytest.raises(Busy):
            stack.enter_context(bodies.room("a")).require(100)
        for _ in range(2):
            stack.enter_context(bodies.room("b")).require(100)
        with pytest.raises(Busy):
            stack.enter_context(bodies.room("b")).require(200)
        stack.enter_context(bodies.room("c")).require(100)
        assert bodies.held == 800
    assert bodies.held == 0


@given(
    some.lists(
        some.tuples(some.integers(0, 5), some.sampled_from("abc"), some.integers(0, 700)), min_size=1, max_size=60
    )
)
def test_the_bound_holds_in_any_order(steps: list[tuple[int, str, int]]) -> None:
    """It is passed by a body that is alone only; a refusal takes nothing; and nothing is held at the end."""
    bodies = Bodies(1000)
    with ExitStack() as everyone:
        rooms: dict[int, tuple[ExitStack, Room]] = {}
        for slot, tenant, size in steps:
            if slot in rooms and size % 3 == 0:
                rooms.pop(slot)[0].close()
                continue
            if slot not in rooms:
                stack = everyone.enter_context(ExitStack())
                rooms[slot] = (stack, stack.enter_context(bodies.room(tenant)))
            room, before, already = rooms[slot][1], bodies.held, rooms[slot][1].size
            refusal: Busy | None = None
            try:
                room.require(size)
            except Busy as busy:
                refusal = busy
            if refusal is not None:
                assert bodies.held == before > already == room.size
                assert 0 < refusal.retry_after_seconds <= 120
            assert bodies.held == sum(one.size for _, one in rooms.values())
            assert bodies.held <= 1000 or sum(one.size > 0 for _, one in rooms.values()) == 1
    assert bodies.held == 0
