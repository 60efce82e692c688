"""A disk that is full within a tenure: what was answered is written once the disk is well."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from typing import Any

import pytest

from jubako.errors import Unavailable
from jubako.gate.budgets.counted import CountedBudgets
from jubako.vocabulary import Budget
from tests.budget_refusals import used_today
from tests.budget_stores import NOON, Clock, StoreUnderTest, end, principal
from tests.tenures import store_of, until_idle


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
