"""No limit is passed by one, and each reservation counts until its end, once."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from jubako.errors import Busy, NeverFits, QuotaExhausted, Refusal
from jubako.gate.budgets.counted import UNCOUNTED, CountedBudgets
from jubako.vocabulary import Budget, Principal, Rate, Rates
from tests.budget_refusals import refused, used_today
from tests.budget_stores import Clock, StoreUnderTest, end, principal


class TestLimits:
    async def test_two_hundred_at_once_never_pass_a_limit_by_one(self, open_budgets: CountedBudgets) -> None:
        for budget in (
            Budget(concurrency=37),
            Budget(requests_per_minute=37),
            Budget(tokens_per_minute=379),
            Budget(tokens_per_day=379),
            Budget(tokens_per_month=379),
        ):
            for by_key in (False, True):
                tenant = f"tenant-{budget}-{by_key}"
                asker = principal(key_budget=budget, tenant=tenant) if by_key else principal(budget, tenant=tenant)
                tasks = (open_budgets.reserve(asker, 10) for _ in range(200))
                results = await asyncio.gather(*tasks, return_exceptions=True)
                assert sum(not isinstance(result, Refusal) for result in results) == 37
                assert not [one for one in results if isinstance(one, BaseException) and not isinstance(one, Refusal)]

    async def test_a_refusal_takes_nothing_from_any_budget(self, open_budgets: CountedBudgets) -> None:
        wide = Budget(requests_per_minute=3, tokens_per_minute=300, tokens_per_day=300, concurrency=3)
        narrow = principal(wide, Budget(tokens_per_month=50), key="narrow")
        for _ in range(5):
            assert (await refused(open_budgets, narrow, 100)).code == "insufficient_quota"
        free = principal(wide, key="free")
        for _ in range(3):
            await open_budgets.reserve(free, 100)

    async def test_keys_of_one_tenant_are_counted_apart_and_the_tenant_over_all(
        self, open_budgets: CountedBudgets
    ) -> None:
        def key(name: str) -> Principal:
            return principal(Budget(concurrency=3), Budget(concurrency=2), key=name)

        await open_budgets.reserve(key("a"), 1)
        await open_budgets.reserve(key("a"), 1)
        assert "This API key may have 2" in (await refused(open_budgets, key("a"), 1)).message
        await open_budgets.reserve(key("b"), 1)
        assert "This tenant may have 3" in (await refused(open_budgets, key("b"), 1)).message

    async def test_keys_of_the_same_name_in_two_tenants_share_nothing(self, open_budgets: CountedBudgets) -> None:
        one = Budget(concurrency=1)
        await open_budgets.reserve(principal(key_budget=one, tenant="a", key="b:c"), 1)
        await open_budgets.reserve(principal(key_budget=one, tenant="a:b", key="c"), 1)
        await open_budgets.reserve(principal(key_budget=one, tenant="b", key="b:c"), 1)

    async def test_without_limits_nothing_is_kept(self, store: StoreUnderTest, open_budgets: CountedBudgets) -> None:
        assert await open_budgets.reserve(principal(), 10**9) is UNCOUNTED
        await UNCOUNTED.amend(5)
        await end(UNCOUNTED, 5)
        await end(UNCOUNTED, None)
        assert UNCOUNTED.rates == Rates()
        assert store.rows() == 0


class TestEnds:
    async def test_settled_tokens_replace_reserved_ones(self, open_budgets: CountedBudgets) -> None:
        asker = principal(Budget(tokens_per_minute=100, tokens_per_day=100, tokens_per_month=100))
        first = await open_budgets.reserve(asker, 90)
        assert (await refused(open_budgets, asker, 20)).code == "rate_limit_exceeded"
        await end(first, 30)
        second = await open_budgets.reserve(asker, 70)
        await end(second, 500)
        assert (await refused(open_budgets, asker, 1)).message.count("530") == 1

    async def test_release_gives_back_the_request_too(self, open_budgets: CountedBudgets) -> None:
        asker = principal(Budget(requests_per_minute=1, tokens_per_minute=10, tokens_per_month=10, concurrency=1))
        for _ in range(3):
            await end(await open_budgets.reserve(asker, 10), None)

    async def test_only_the_first_end_counts(self, open_budgets: CountedBudgets) -> None:
        asker = principal(Budget(tokens_per_day=100, concurrency=2))
        held = await open_budgets.reserve(asker, 50)
        await open_budgets.reserve(asker, 10)
        await asyncio.gather(end(held, 40), end(held, 50), end(held, None), held.amend(90))
        await end(held, None)
        await open_budgets.reserve(asker, 50)
        assert "100 are used" in (await refused(open_budgets, asker, 1)).message

    async def test_a_settlement_counts_where_it_was_reserved(self, open_budgets: CountedBudgets, clock: Clock) -> None:
        asker = principal(Budget(tokens_per_minute=100))
        held = await open_budgets.reserve(asker, 80)
        clock.advance(30)
        await end(held, 100)
        clock.advance(30.7)
        assert (await refused(open_budgets, asker, 1)).retry_after_seconds == pytest.approx(0.05)
        clock.advance(0.06)
        await open_budgets.reserve(asker, 100)

    @pytest.mark.parametrize("span", ["tokens_per_day", "tokens_per_month"])
    async def test_what_is_only_held_is_worth_coming_back_for(self, open_budgets: CountedBudgets, span: str) -> None:
        """A quota is exhausted by what was used: of what runs, nobody knows yet how much it will use."""
        asker = principal(dataclasses.replace(Budget(concurrency=9), **{span: 100}))
        await end(await open_budgets.reserve(asker, 20), 20)
        running = [await open_budgets.reserve(asker, 40) for _ in range(2)]
        refusal = await refused(open_budgets, asker, 30)
        assert (refusal.code, refusal.retry) == ("rate_limit_exceeded", True)
        assert 0 < refusal.retry_after_seconds <= 120
        assert "100 are used or held" in refusal.message
        assert isinstance(await refused(open_budgets, asker, 81), QuotaExhausted)
        with pytest.raises(Busy) as more:
            await running[0].amend(41)
        assert more.value.retry_after_seconds > 0
        await running[0].amend(10)
        await open_budgets.reserve(asker, 30)
        await end(running[0], 10)
        await end(running[1], 40)
        assert isinstance(await refused(open_budgets, asker, 31), QuotaExhausted)
        assert (await refused(open_budgets, asker, 30)).code == "rate_limit_exceeded"

    async def test_of_amendments_at_once_the_last_is_held(self, open_budgets: CountedBudgets) -> None:
        asker = principal(Budget(tokens_per_day=1000))
        held = await open_budgets.reserve(asker, 5)
        await asyncio.gather(*(held.amend(tokens) for tokens in (900, 10, 700, 20, 300)))
        assert await used_today(open_budgets, 1000) == 300

    async def test_amending_takes_more_or_gives_back(self, open_budgets: CountedBudgets) -> None:
        asker = principal(Budget(requests_per_minute=9, tokens_per_minute=100, tokens_per_day=100, concurrency=1))
        held = await open_budgets.reserve(asker, 50)
        await held.amend(100)
        assert held.rates.tokens is not None
        assert held.rates.tokens.remaining == 0
        with pytest.raises(NeverFits, match=r"may use 101 tokens.*can never fit"):
            await held.amend(101)
        await held.amend(20)
        assert held.rates.tokens.remaining == 80
        await end(held, 20)
        other = await open_budgets.reserve(asker, 70)
        with pytest.raises(QuotaExhausted):
            await other.amend(81)
        await other.amend(80)

    async def test_a_refused_amendment_changes_nothing(self, open_budgets: CountedBudgets) -> None:
        asker = principal(Budget(tokens_per_minute=100))
        await open_budgets.reserve(asker, 40)
        held = await open_budgets.reserve(asker, 50)
        with pytest.raises(Busy) as caught:
            await held.amend(61)
        assert caught.value.retry_after_seconds == pytest.approx(60.75)
        assert caught.value.rates is not None
        assert caught.value.rates.tokens == Rate(100, 10, 60.75)
        await open_budgets.reserve(asker, 10)

    async def test_a_caller_who_leaves_while_reserving_holds_nothing(self, open_budgets: CountedBudgets) -> None:
        asker = principal(Budget(concurrency=1, requests_per_minute=1))
        for turns in range(8):
            task = asyncio.create_task(open_budgets.reserve(asker, 1))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            result = (await asyncio.gather(task, return_exceptions=True))[0]
            if not isinstance(result, BaseException):
                await end(result, None)
            telling = open_budgets._telling
            if telling is not None:
                await telling
        await open_budgets.reserve(asker, 1)
