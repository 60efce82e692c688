"""A tenure beside other processes: each has its turn and sees what the others did, and a kill loses little."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from jubako.gate.budgets.turn import Turn
from jubako.vocabulary import Budget
from tests.budget_refusals import used_today
from tests.budget_stores import Clock, StoreUnderTest, end, principal
from tests.budget_tenure_child import HELD_ON_DISK, LIMITS, SETTLED_ON_DISK
from tests.project import REPOSITORY
from tests.tenures import store_of, until_idle


class TestOthers:
    async def test_an_idle_store_holds_no_lock(self, files: StoreUnderTest, clock: Clock) -> None:
        budgets = await files.open(clock)
        await end(await budgets.reserve(principal(Budget(tokens_per_day=10)), 1), 1)
        await until_idle(budgets)
        connection = sqlite3.connect(files.folder / "budgets.sqlite", timeout=0, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        (count,) = connection.execute("SELECT count(*) FROM accounts").fetchone()
        connection.execute("ROLLBACK")
        connection.close()
        assert count == 1
        turn = Turn(files.folder / "budgets.sqlite")
        turn.take(0)
        turn.leave()
        turn.close()

    async def test_a_newcomer_comes_in_beside_one_that_never_rests(self, files: StoreUnderTest, clock: Clock) -> None:
        busy = await files.open(clock)
        asker = principal(Budget(tokens_per_day=10**9, concurrency=1))
        stop = asyncio.Event()

        async def work() -> None:
            while not stop.is_set():
                await end(await busy.reserve(asker, 1), 1)
                await asyncio.sleep(0)

        working = asyncio.create_task(work())
        newcomer = await files.open(clock)
        await newcomer.reserve(principal(Budget(concurrency=1), tenant="other"), 1)
        stop.set()
        await working

    async def test_two_alternate_and_each_sees_what_the_other_did(self, files: StoreUnderTest, clock: Clock) -> None:
        one = await files.open(clock)
        await end(await one.reserve(principal(Budget(tokens_per_day=1000)), 7), 7)
        two = await files.open(clock)
        used = 7
        for turn in range(40):
            budgets, other = (one, two) if turn % 2 else (two, one)
            held = await budgets.reserve(principal(Budget(tokens_per_day=1000)), 20)
            assert await used_today(other, 1000) == used + 20
            await end(held, turn)
            used += turn
            assert await used_today(other, 1000) == used

    async def test_one_that_is_alone_again_decides_in_memory_again(self, files: StoreUnderTest, clock: Clock) -> None:
        one, two = await files.open(clock), await files.open(clock)
        asker = principal(Budget(tokens_per_day=100))
        await end(await two.reserve(asker, 30), 30)
        await two.close()
        async with asyncio.timeout(60):
            while store_of(one)._gate.locked():
                await end(await one.reserve(asker, 1), None)
        assert await used_today(one, 100) == 30

    @pytest.mark.timeout(60)
    async def test_a_kill_within_a_tenure_loses_no_more_than_that(self, files: StoreUnderTest) -> None:
        kill_within_a_tenure(files)
        connection = sqlite3.connect(files.folder / "budgets.sqlite")
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        (held,) = connection.execute("SELECT count(*) FROM reservations").fetchone()
        connection.close()
        assert held >= HELD_ON_DISK
        budgets = await files.open(lease_seconds=1)
        asker = principal(LIMITS)
        async with asyncio.timeout(90):
            while await used_today(budgets, 1000) != SETTLED_ON_DISK:
                await asyncio.sleep(0.05)
                await budgets._store.beat()
        for _ in range(100):
            await budgets.reserve(asker, 0)


def kill_within_a_tenure(files: StoreUnderTest) -> None:
    """Run a process at the file, and end it when it has done more than is on disk."""
    command = [sys.executable, "-m", "tests.budget_tenure_child", files.settings(lease_seconds=1).model_dump_json()]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [*command, str(files.folder)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, env=environment
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "on disk\n"
        assert process.stdout.readline() == "more\n"
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()


class TestTurn:
    def test_one_has_it_and_hears_that_another_waits(self, tmp_path: Path) -> None:
        one, two = Turn(tmp_path / "file"), Turn(tmp_path / "file")
        one.take(1)
        assert not one.wanted()
        with pytest.raises(TimeoutError, match="another process"):
            two.take(0.01)
        assert not one.wanted(), "it has given up"
        one.leave()
        two.take(1)
        one.close()
        two.close()
        three = Turn(tmp_path / "file")
        three.take(0)
        three.close()
