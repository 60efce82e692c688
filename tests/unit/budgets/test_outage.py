"""A store that is away: refused soon, nothing lost, nothing taken twice, and back by itself."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jubako.errors import Unavailable
from jubako.vocabulary import Budget
from tests.budget_refusals import refused
from tests.budget_stores import Clock, StoreUnderTest, end, principal


class TestOutage:
    @contextmanager
    def outage(self, store: StoreUnderTest) -> Iterator[None]:
        if store.server is not None:
            with store.server.stopped():
                yield
            return
        connection = sqlite3.connect(store.folder / "budgets.sqlite", isolation_level=None, timeout=10)
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")
        finally:
            connection.close()

    async def test_it_fails_closed_soon_loses_nothing_and_recovers(self, store: StoreUnderTest, clock: Clock) -> None:
        budgets = await store.open(clock)
        asker = principal(Budget(concurrency=3, tokens_per_day=100, requests_per_minute=1000))
        settled, released, kept = [await budgets.reserve(asker, 30) for _ in range(3)]
        loop = asyncio.get_running_loop()
        with self.outage(store):
            before = loop.time()
            refusal = await refused(budgets, asker, 10)
            assert loop.time() - before < 10
            assert isinstance(refusal, Unavailable)
            assert (refusal.code, refusal.retry) == ("not_ready", True)
            await end(settled, 20)
            await end(released, None)
            with pytest.raises(Unavailable):
                await kept.amend(40)
        async with asyncio.timeout(90):
            while budgets._away:
                await asyncio.sleep(0.01)
        assert not budgets._untold
        other = await budgets.reserve(asker, 50)
        assert "100 are used" in (await refused(budgets, asker, 1)).message
        await end(other, None)
        await end(kept, 30)
        for _ in range(3):
            await budgets.reserve(asker, 10)
        assert (await refused(budgets, asker, 10)).code == "concurrency_exceeded"

    async def test_what_was_asked_during_the_outage_is_not_taken_after_it(
        self, store: StoreUnderTest, clock: Clock
    ) -> None:
        budgets = await store.open(clock)
        asker = principal(Budget(concurrency=5, requests_per_minute=5))
        with self.outage(store):
            results = await asyncio.gather(*(budgets.reserve(asker, 1) for _ in range(40)), return_exceptions=True)
            assert all(isinstance(result, Unavailable) for result in results)
        async with asyncio.timeout(90):
            while budgets._away:
                await asyncio.sleep(0.01)
        for _ in range(5):
            await budgets.reserve(asker, 1)

    async def test_a_take_that_arrives_after_its_end_is_not_taken(self, store: StoreUnderTest, clock: Clock) -> None:
        from jubako.gate.budgets.store import Claim, End, Take

        if store.kind != "redis":
            pytest.skip("one thread does everything in order")
        budgets = await store.open(clock)
        remote: Any = budgets._store
        await remote.end((End(7, None, doubtful=True),))
        claims = (Claim("t:acme", Budget(concurrency=1)),)
        assert not (await remote.take(Take(7, 1, claims))).known
        assert (await remote.take(Take(8, 1, claims))).granted
        assert (await remote.take(Take(8, 1, claims))).granted, "repeated, as after a lost answer"

    async def test_closing_while_the_store_is_away_ends(self, store: StoreUnderTest, clock: Clock) -> None:
        budgets = await store.open(clock)
        await budgets.reserve(principal(Budget(concurrency=3)), 30)
        with self.outage(store):
            async with asyncio.timeout(90):
                await budgets.close()
