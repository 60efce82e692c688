"""What an instance held is free after it: by its farewell, or by its lease if it was killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from jubako.errors import Busy, QuotaExhausted
from jubako.gate.budgets.port import Reservation
from jubako.vocabulary import Budget
from tests.budget_refusals import refused
from tests.budget_stores import Clock, StoreUnderTest, crash, end, principal
from tests.project import REPOSITORY


class TestLeases:
    async def test_what_a_dead_instance_held_is_free_after_its_lease(self, store: StoreUnderTest, clock: Clock) -> None:
        asker = principal(Budget(concurrency=1, tokens_per_minute=100, tokens_per_month=100))
        dead = await store.open(clock, lease_seconds=15)
        await dead.reserve(asker, 100)
        await crash(dead)
        alive = await store.open(clock, lease_seconds=15)
        clock.advance(14.9)
        await alive._store.beat()
        await refused(alive, asker, 100)
        clock.advance(0.2)
        await alive.reserve(asker, 100)

    async def test_an_instance_that_comes_back_settles_what_was_freed_once(
        self, store: StoreUnderTest, clock: Clock
    ) -> None:
        asker = principal(Budget(concurrency=2, tokens_per_day=100))
        stalled, alive = await store.open(clock), await store.open(clock)
        one, two, three = [await stalled.reserve(principal(Budget(tokens_per_day=100)), 30) for _ in range(3)]
        clock.advance(16)
        held = await alive.reserve(asker, 20)
        await end(one, 10)
        await end(one, 10)
        await end(two, None)
        await three.amend(50)
        assert "80 are used" in (await refused(alive, asker, 21)).message
        await end(three, 5)
        assert "35 are used" in (await refused(alive, asker, 66)).message
        await end(held, None)
        assert "15 are used" in (await refused(stalled, asker, 86)).message

    async def test_a_farewell_frees_at_once(self, store: StoreUnderTest, clock: Clock) -> None:
        asker = principal(Budget(concurrency=1, tokens_per_day=100))
        leaving, staying = await store.open(clock), await store.open(clock)
        await leaving.reserve(asker, 100)
        await refused(staying, asker, 1)
        await leaving.close()
        await staying.reserve(asker, 100)

    @pytest.mark.timeout(60)
    async def test_a_killed_process_frees_what_it_held(self, store: StoreUnderTest) -> None:
        budgets = await store.open(lease_seconds=1)
        asker = principal(Budget(concurrency=5, requests_per_minute=10_000, tokens_per_day=1_000_000))
        with child(store, limit=5, tasks=8, lease_seconds=1) as process:
            assert ask(process) == 5
            assert (await refused(budgets, asker, 10)).code == "concurrency_exceeded"
            process.send_signal(signal.SIGKILL)
            process.wait()
        held: list[Reservation] = []
        async with asyncio.timeout(90):
            while not held:
                try:
                    held.append(await budgets.reserve(asker, 1_000_000))
                except (Busy, QuotaExhausted):
                    await asyncio.sleep(0.05)

    @pytest.mark.timeout(60)
    async def test_two_processes_never_pass_a_limit_together(self, store: StoreUnderTest) -> None:
        with child(store, limit=61, tasks=100) as one, child(store, limit=61, tasks=100) as two:
            for process in (one, two):
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            assert answer(one) + answer(two) == 61


@contextmanager
def child(
    store: StoreUnderTest, *, limit: int, tasks: int, lease_seconds: float = 15
) -> Iterator[subprocess.Popen[str]]:
    """A process at the same store, until the block ends."""
    command = [sys.executable, "-m", "tests.budget_child", store.settings(lease_seconds).model_dump_json()]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [*command, str(store.folder), str(limit), str(tasks)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, env=environment,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def ask(process: subprocess.Popen[str]) -> int:
    """Let a child reserve; how many were granted."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return answer(process)


def answer(process: subprocess.Popen[str]) -> int:
    """How many a child was granted."""
    assert process.stdout is not None
    return int(process.stdout.readline())
