"""Budgets stay small and fast: idle tenants leave nothing, busy accounts are bounded."""

from __future__ import annotations

import asyncio
import sqlite3

from jubako.vocabulary import Budget
from tests.budget_stores import Clock, StoreUnderTest, end, principal


class TestSize:
    async def test_idle_tenants_leave_nothing(self, store: StoreUnderTest, clock: Clock) -> None:
        budgets = await store.open(clock)
        for number in range(30):
            budget = Budget(requests_per_minute=5) if number % 2 else Budget(concurrency=2)
            await end(await budgets.reserve(principal(budget, tenant=f"t{number}"), 5), 5)
        assert store.rows() == 15
        clock.advance(61)
        await budgets._store.beat()
        if store.server is None:
            assert store.rows() == 0
        else:
            with store.server.client() as client:
                times = [client.ttl(key) for key in client.scan_iter("jubako:{budgets}:2:account:*")]
            assert all(0 < seconds <= 61 for seconds in times)

    async def test_a_busy_account_stays_small(self, store: StoreUnderTest, clock: Clock) -> None:
        budgets = await store.open(clock)
        asker = principal(Budget(requests_per_minute=10_000, tokens_per_month=10**9))
        for _ in range(300):
            await end(await budgets.reserve(asker, 5), 5)
            clock.advance(0.7)
        assert store.rows() == 1
        if store.server is None:
            connection = sqlite3.connect(store.folder / "budgets.sqlite")
            (size,) = connection.execute("SELECT length(state) FROM accounts").fetchone()
            connection.close()
        else:
            with store.server.client() as client:
                size = client.strlen("jubako:{budgets}:2:account:t:acme")
        assert size <= 8 * (6 + 3 * 61)

    async def test_ten_thousand_tenants_cost_each_no_more_than_a_few(self, store: StoreUnderTest, clock: Clock) -> None:
        budgets = await store.open(clock)
        loop = asyncio.get_running_loop()
        budget = Budget(requests_per_minute=100, tokens_per_month=10**6)

        async def cost(numbers: range) -> float:
            """The cheapest of some: what else the machine does is not measured."""
            costs = []
            for start in range(numbers.start, numbers.stop, 50):
                before = loop.time()
                for number in range(start, start + 50):
                    await end(await budgets.reserve(principal(budget, tenant=f"t{number}"), 5), 5)
                costs.append(loop.time() - before)
            return min(costs)

        few = await cost(range(500))
        for start in range(500, 10_000, 250):
            some = range(start, start + 250)
            await asyncio.gather(*(budgets.reserve(principal(budget, tenant=f"t{number}"), 5) for number in some))
        assert await cost(range(9_000, 9_500)) < 10 * few
