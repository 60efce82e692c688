"""Minutes, days and months: when what was refused fits again, and what the headers tell of it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from jubako.errors import Busy, QuotaExhausted
from jubako.gate.budgets.counted import CountedBudgets
from jubako.vocabulary import Budget, Rate, Rates
from tests.budget_refusals import refused
from tests.budget_stores import Clock, StoreUnderTest, end, principal


class TestWindows:
    async def test_retry_after_is_the_moment_it_fits(self, open_budgets: CountedBudgets, clock: Clock) -> None:
        asker = principal(Budget(tokens_per_minute=100, requests_per_minute=50))
        for tokens, pause in ((30, 1.5), (30, 7.125), (40, 3.0)):
            await end(await open_budgets.reserve(asker, tokens), tokens)
            clock.advance(pause)
        refusal = await refused(open_budgets, asker, 55)
        assert refusal.code == "rate_limit_exceeded"
        assert refusal.retry
        wait = refusal.retry_after_seconds
        clock.advance(wait - 0.001)
        await refused(open_budgets, asker, 55)
        clock.advance(0.001)
        await open_budgets.reserve(asker, 55)

    async def test_no_sixty_seconds_hold_more_than_the_limit(self, open_budgets: CountedBudgets, clock: Clock) -> None:
        asker = principal(Budget(requests_per_minute=5))
        granted: list[float] = []
        for step in range(400):
            try:
                await end(await open_budgets.reserve(asker, 1), 1)
                granted.append(clock())
            except Busy:
                pass
            clock.advance(0.37 + step % 3)
        assert len(granted) > 20
        assert all(later - earlier >= 60 for earlier, later in zip(granted, granted[5:], strict=False))

    @pytest.mark.parametrize(
        ("budget", "border"),
        [
            (Budget(tokens_per_day=100), datetime(2025, 6, 16, tzinfo=UTC)),
            (Budget(tokens_per_month=100), datetime(2024, 3, 1, tzinfo=UTC)),
            (Budget(tokens_per_month=100), datetime(2025, 1, 1, tzinfo=UTC)),
            (Budget(tokens_per_month=100), datetime(2028, 12, 1, tzinfo=UTC)),
            (Budget(tokens_per_month=100), datetime(2100, 3, 1, tzinfo=UTC)),
        ],
    )
    async def test_days_and_months_end_at_midnight_utc(
        self, store: StoreUnderTest, budget: Budget, border: datetime
    ) -> None:
        clock = Clock(border.timestamp() - 86_000)
        budgets = await store.open(clock, lease_seconds=600)
        asker = principal(budget)
        await end(await budgets.reserve(asker, 60), 60)
        late = await budgets.reserve(asker, 30)
        clock.now = border.timestamp() - 0.5
        refusal = await refused(budgets, asker, 50)
        assert isinstance(refusal, QuotaExhausted)
        assert not refusal.retry
        assert border.strftime("%Y-%m-%d %H:%M UTC") in refusal.message
        clock.advance(0.5)
        await budgets.reserve(asker, 90)
        await end(late, 0)  # of the span before: gives nothing to this one
        await refused(budgets, asker, 11)
        await budgets.reserve(asker, 10)

    async def test_what_can_never_fit_says_so_and_is_not_tried_again(self, open_budgets: CountedBudgets) -> None:
        refusal = await refused(open_budgets, principal(Budget(tokens_per_minute=100)), 101)
        assert (refusal.code, refusal.retry) == ("rate_limit_exceeded", False)
        assert "can never fit" in refusal.message
        refusal = await refused(open_budgets, principal(Budget(tokens_per_day=100)), 101)
        assert (refusal.code, refusal.retry) == ("insufficient_quota", False)
        assert "can never fit" in refusal.message
        for nothing in (Budget(requests_per_minute=0), Budget(concurrency=0)):
            assert not (await refused(open_budgets, principal(nothing), 1)).retry

    async def test_concurrency_is_refused_with_an_estimate(self, open_budgets: CountedBudgets) -> None:
        asker = principal(Budget(concurrency=2))
        first = await open_budgets.reserve(asker, 1)
        await open_budgets.reserve(asker, 1)
        refusal = await refused(open_budgets, asker, 1)
        assert (refusal.code, refusal.retry) == ("concurrency_exceeded", True)
        assert 0 < refusal.retry_after_seconds <= 120
        await end(first, 1)
        await open_budgets.reserve(asker, 1)

    async def test_a_clock_set_back_does_not_block_for_as_long(
        self, open_budgets: CountedBudgets, clock: Clock
    ) -> None:
        asker = principal(Budget(requests_per_minute=1))
        await end(await open_budgets.reserve(asker, 1), 1)
        clock.advance(-30)
        await refused(open_budgets, asker, 1)
        clock.advance(-3600)
        await open_budgets.reserve(asker, 1)


class TestRates:
    async def test_headers_tell_the_tightest_limit_right_after_the_reservation(
        self, open_budgets: CountedBudgets, clock: Clock
    ) -> None:
        asker = principal(
            Budget(requests_per_minute=10, tokens_per_minute=1000),
            Budget(requests_per_minute=12, tokens_per_minute=500),
        )
        held = await open_budgets.reserve(asker, 100)
        assert held.rates == Rates(Rate(10, 9, 60.75), Rate(500, 400, 60.75))
        await end(held, 40)
        clock.advance(10)
        held = await open_budgets.reserve(asker, 460)
        assert held.rates == Rates(Rate(10, 8, 60.75), Rate(500, 0, 60.75))
        clock.advance(1.5)
        refusal = await refused(open_budgets, asker, 1)
        assert refusal.rates == Rates(Rate(10, 8, 59.25), Rate(500, 0, 59.25))

    async def test_they_are_those_after_an_amendment_and_after_the_end(
        self, open_budgets: CountedBudgets, clock: Clock
    ) -> None:
        asker = principal(Budget(requests_per_minute=10, tokens_per_minute=1000), Budget(tokens_per_minute=500))
        one, two = await open_budgets.reserve(asker, 100), await open_budgets.reserve(asker, 50)
        await one.amend(200)
        assert one.rates == Rates(Rate(10, 8, 60.75), Rate(500, 250, 60.75))
        clock.advance(1)
        await end(one, 30)
        assert one.rates == Rates(Rate(10, 8, 59.75), Rate(500, 420, 59.75))
        await end(two, None)
        assert two.rates == Rates(Rate(10, 9, 59.75), Rate(500, 470, 59.75))

    async def test_an_end_costs_the_store_one_question(self, open_budgets: CountedBudgets) -> None:
        asked: list[str] = []
        store = open_budgets._store

        class Counting:
            def __getattr__(self, name: str) -> object:
                asked.append(name)
                return getattr(store, name)

        held = await open_budgets.reserve(principal(Budget(tokens_per_minute=500)), 100)
        open_budgets._store = Counting()  # type: ignore[assignment]
        await end(held, 30)
        open_budgets._store = store
        assert asked == ["end"]
        assert held.rates == Rates(None, Rate(500, 470, 60.75))

    async def test_a_limit_that_is_not_set_has_no_header(self, open_budgets: CountedBudgets) -> None:
        assert (await open_budgets.reserve(principal(Budget(concurrency=5)), 10)).rates == Rates()
        rates = (await open_budgets.reserve(principal(Budget(tokens_per_minute=50)), 0)).rates
        assert rates == Rates(None, Rate(50, 50, 0.0))
