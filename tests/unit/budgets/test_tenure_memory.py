"""While one server is alone at its SQLite file it decides in memory: no request waits, and memory is bounded."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from jubako.errors import Refusal
from jubako.gate.budgets import tally
from jubako.vocabulary import Budget
from tests.budget_refusals import used_today
from tests.budget_stores import Clock, StoreUnderTest, end, principal
from tests.tenures import store_of, until_idle


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
