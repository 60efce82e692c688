"""While one server is alone at its SQLite file it decides in memory: what that must not change."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jubako.errors import Refusal, Unavailable
from jubako.gate.budgets import tally
from jubako.gate.budgets.counted import CountedBudgets
from jubako.gate.budgets.sqlite import SqliteStore
from jubako.gate.budgets.turn import Turn
from jubako.vocabulary import Budget
from tests.budget_stores import NOON, Clock, StoreUnderTest, end, principal
from tests.budget_tenure_child import HELD_ON_DISK, LIMITS, SETTLED_ON_DISK
from tests.project import REPOSITORY


@pytest.fixture
async def files(tmp_path: Path) -> AsyncIterator[StoreUnderTest]:
    """An empty file."""
    made = StoreUnderTest("sqlite", tmp_path, None)
    yield made
    await made.close()


@pytest.fixture
def clock() -> Clock:
    """A clock at noon."""
    return Clock()


def store_of(budgets: CountedBudgets) -> SqliteStore:
    """The store below."""
    assert isinstance(budgets._store, SqliteStore)
    return budgets._store


async def until_idle(budgets: CountedBudgets) -> None:
    """Until the tenure has ended."""
    tenures = store_of(budgets)._tenures
    assert tenures is not None
    async with asyncio.timeout(90):
        while tenures._ends_at is not None:
            await asyncio.sleep(0.005)


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


class Disk:
    """In place of a store's connection: one that can be full."""

    def __init__(self, budgets: CountedBudgets) -> None:
        self.full = False
        self.failures = 0
        tenures = store_of(budgets)._tenures
        assert tenures is not None
        self._real = tenures._connection
        tenures._connection = self  # type: ignore[assignment]

    def execute(self, statement: str) -> Any:
        if statement == "COMMIT" and self.full:
            self.failures += 1
            raise sqlite3.OperationalError("database or disk is full")
        return self._real.execute(statement)

    @property
    def in_transaction(self) -> bool:
        return self._real.in_transaction

    async def has_failed(self, times: int = 1) -> None:
        async with asyncio.timeout(90):
            while self.failures < times:
                await asyncio.sleep(0.005)


async def until_back(budgets: CountedBudgets) -> None:
    """Until the store is known to answer again."""
    async with asyncio.timeout(90):
        while budgets._away:
            await asyncio.sleep(0.005)


async def used_today(budgets: CountedBudgets, limit: int) -> int:
    """How many tokens of `limit` are used or held, as a refusal says."""
    with pytest.raises(Refusal) as caught:
        await budgets.reserve(principal(Budget(tokens_per_day=limit)), limit + 1)
    words = caught.value.message.split()
    return int(words[words.index("day;") + 1])


class TestInMemory:
    async def test_within_a_tenure_no_request_waits_for_the_thread(
        self, files: StoreUnderTest, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        budgets = await files.open(clock)
        asker = principal(Budget(tokens_per_minute=100, concurrency=3), Budget(tokens_per_day=100))
        async with asyncio.timeout(60):
            while True:  # a machine that stalls may let a tenure end in between
                await end(await budgets.reserve(asker, 10), None)
                jobs = store_of(budgets)._jobs
                put: list[object] = []
                monkeypatch.setattr(store_of(budgets), "_jobs", _Noting(jobs, put))
                held = await budgets.reserve(asker, 10)
                await held.amend(20)
                await end(held, 0)
                monkeypatch.setattr(store_of(budgets), "_jobs", jobs)
                if not put:
                    break

    async def test_a_reservation_that_ends_in_its_tenure_is_never_written(
        self, files: StoreUnderTest, clock: Clock
    ) -> None:
        budgets = await files.open(clock)
        for _ in range(20):
            await end(await budgets.reserve(principal(Budget(requests_per_minute=30)), 1), 1)
        held = await budgets.reserve(principal(Budget(requests_per_minute=30)), 1)
        assert files.rows() == 2
        await end(held, 1)
        assert files.rows() == 1

    async def test_days_and_months_end_within_a_tenure(self, files: StoreUnderTest) -> None:
        clock = Clock(datetime(2025, 2, 28, 23, 59, 58, 500_000, tzinfo=UTC).timestamp())
        budgets = await files.open(clock)
        asker = principal(Budget(tokens_per_day=100, tokens_per_month=150))
        first = await budgets.reserve(asker, 90)
        with pytest.raises(Refusal, match="a day; 90 are used"):
            await budgets.reserve(asker, 20)
        clock.advance(2)
        second = await budgets.reserve(asker, 100)
        await end(first, 80)
        with pytest.raises(Refusal, match="a day; 100 are used"):
            await budgets.reserve(asker, 1)
        await end(second, 100)
        assert await used_today(budgets, 100) == 100

    async def test_the_own_lease_is_renewed_when_it_lapses_within_a_tenure(
        self, files: StoreUnderTest, clock: Clock
    ) -> None:
        one = await files.open(clock)
        asker = principal(Budget(concurrency=1))
        await one.reserve(asker, 1)
        clock.advance(16)
        with pytest.raises(Refusal):
            await one.reserve(asker, 1)
        other = await files.open(clock)
        with pytest.raises(Refusal, match="1 are"):
            await other.reserve(asker, 1)

    async def test_memory_is_bounded_and_what_leaves_it_counts_on(
        self, files: StoreUnderTest, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tally, "ACCOUNTS_KEPT", 100)
        budgets = await files.open(clock)

        async def use(number: int) -> None:
            asker = principal(Budget(tokens_per_day=10), tenant=f"t{number}")
            await end(await budgets.reserve(asker, 5), 5)

        for _ in range(2):
            await asyncio.gather(*(use(number) for number in range(3000)))
        await until_idle(budgets)
        assert len(store_of(budgets)._tally._accounts) <= 100
        assert not store_of(budgets)._tally._held
        for number in (0, 1500, 2999):
            with pytest.raises(Refusal, match="10 are used"):
                await budgets.reserve(principal(Budget(tokens_per_day=10), tenant=f"t{number}"), 1)


class _Noting:
    """A queue that tells what was put."""

    def __init__(self, real: Any, put: list[object]) -> None:
        self._real = real
        self._put = put

    def put(self, one: object) -> None:
        self._put.append(one)
        self._real.put(one)


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


class TestFailures:
    async def test_what_was_answered_is_written_once_the_disk_is_well(
        self, files: StoreUnderTest, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(logging.getLogger("jubako"), "propagate", True)
        budgets = await files.open(clock)
        asker = principal(Budget(tokens_per_day=1000, concurrency=10))
        kept = await budgets.reserve(asker, 200)
        await until_idle(budgets)
        disk = Disk(budgets)
        disk.full = True
        settled = await budgets.reserve(asker, 100)
        await end(settled, 30)
        await kept.amend(150)
        released = await budgets.reserve(asker, 100)
        await end(released, None)
        held = await budgets.reserve(asker, 7)
        await disk.has_failed(2)
        with pytest.raises(Unavailable):
            await budgets.reserve(asker, 1)
        await end(held, 8)
        disk.full = False
        await until_back(budgets)
        assert await used_today(budgets, 1000) == 30 + 150 + 8
        await end(kept, 1)
        other = await files.open(clock)
        assert await used_today(other, 1000) == 30 + 1 + 8
        assert files.rows() == 1
        told = [one.getMessage() for one in caplog.records if "cannot be written" in one.getMessage()]
        assert len(told) == 1
        assert "disk is full" in told[0]

    async def test_it_is_written_without_another_request(self, files: StoreUnderTest, clock: Clock) -> None:
        budgets = await files.open(clock)
        disk = Disk(budgets)
        disk.full = True
        await end(await budgets.reserve(principal(Budget(tokens_per_day=1000)), 100), 30)
        await disk.has_failed()
        disk.full = False
        async with asyncio.timeout(90):
            while store_of(budgets)._tally.deeds:
                await asyncio.sleep(0.005)
        await until_idle(budgets)
        assert files.rows() == 1

    async def test_what_others_wrote_meanwhile_counts_too(self, files: StoreUnderTest, clock: Clock) -> None:
        budgets = await files.open(clock)
        asker = principal(Budget(tokens_per_day=1000))
        disk = Disk(budgets)
        disk.full = True
        held = await budgets.reserve(asker, 100)
        await end(await budgets.reserve(asker, 100), 30)
        await disk.has_failed()
        other = await files.open(clock)
        await end(await other.reserve(asker, 500), 400)
        disk.full = False
        async with asyncio.timeout(90):
            while store_of(budgets)._tally.deeds:
                await asyncio.sleep(0.005)
        assert await used_today(other, 1000) == 400 + 100 + 30
        await end(held, 5)
        assert await used_today(other, 1000) == 400 + 5 + 30

    async def test_what_is_lost_at_the_end_is_told(
        self, files: StoreUnderTest, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(logging.getLogger("jubako"), "propagate", True)
        budgets = await files.open(clock)
        disk = Disk(budgets)
        disk.full = True
        await end(await budgets.reserve(principal(Budget(tokens_per_day=1000)), 100), 30)
        await budgets.close()
        told = [one.getMessage() for one in caplog.records if "are lost" in one.getMessage()]
        assert len(told) == 1

    async def test_closing_writes_what_a_tenure_has(self, files: StoreUnderTest) -> None:
        budgets = await files.open(Clock())
        await end(await budgets.reserve(principal(Budget(tokens_per_day=1000)), 100), 30)
        await budgets.close()
        again = await files.open(Clock(NOON + 1))
        assert await used_today(again, 1000) == 30


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
