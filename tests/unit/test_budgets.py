from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jubako.errors import Busy, NeverFits, QuotaExhausted, Refusal, StartupFault, Unavailable
from jubako.gate.budgets import sqlite
from jubako.gate.budgets.counted import UNCOUNTED, CountedBudgets
from jubako.gate.budgets.port import Reservation
from jubako.vocabulary import Budget, Principal, Rate, Rates
from tests.budget_stores import NOON, Clock, RedisServer, StoreUnderTest, crash, end, principal, redis_server
from tests.project import REPOSITORY


@pytest.fixture(scope="session")
def redis_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer | None]:
    """A real Redis for this module; None where it is not installed."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["sqlite", "redis"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, redis_of_tests: RedisServer | None
) -> AsyncIterator[StoreUnderTest]:
    """An empty store of each kind."""
    server = None
    if request.param == "redis":
        if redis_of_tests is None:
            pytest.skip("redis-server is not installed (Debian: apt install redis-server)")
        server = redis_of_tests
        with server.client() as client:
            client.flushall()
    made = StoreUnderTest(request.param, tmp_path, server)
    yield made
    await made.close()


@pytest.fixture
def clock() -> Clock:
    """A clock at noon."""
    return Clock()


@pytest.fixture
async def open_budgets(store: StoreUnderTest, clock: Clock) -> CountedBudgets:
    """One instance at the store."""
    return await store.open(clock)


async def refused(budgets: CountedBudgets, asker: Principal, tokens: int = 0) -> Refusal:
    """The refusal that a request gets."""
    with pytest.raises(Refusal) as caught:
        await budgets.reserve(asker, tokens)
    return caught.value


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
        assert isinstance(await refused(open_budgets, asker, 20), QuotaExhausted)
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
        late = await budgets.reserve(asker, 60)
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
                times = [client.ttl(key) for key in client.scan_iter("jubako:{budgets}:account:*")]
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
                size = client.strlen("jubako:{budgets}:account:t:acme")
        assert size <= 8 * (5 + 3 * 61)

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


class TestFile:
    def store(self, folder: Path) -> StoreUnderTest:
        return StoreUnderTest("sqlite", folder, None)

    async def fault(self, folder: Path) -> str:
        with pytest.raises(StartupFault) as caught:
            await self.store(folder).open()
        return str(caught.value)

    async def test_it_is_the_servers_alone_and_survives_a_restart(self, tmp_path: Path) -> None:
        store = self.store(tmp_path / "new" / "folder")
        asker = principal(Budget(tokens_per_month=100))
        await end(await (await store.open(Clock())).reserve(asker, 70), 60)
        for file in (tmp_path / "new" / "folder").iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        await store.close()
        again = await store.open(Clock(NOON + 5))
        assert "60 are used" in (await refused(again, asker, 50)).message
        await store.close()

    async def test_a_log_that_cannot_be_moved_is_told_of_once_and_tried_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(sqlite, "CHECKPOINT_SECONDS", 0.01)
        monkeypatch.setattr(logging.getLogger("jubako"), "propagate", True)
        store = self.store(tmp_path)
        budgets = await store.open(Clock())
        connect: Callable[..., sqlite3.Connection] = sqlite3.connect
        failures = 0

        def failing(*arguments: Any, **named: Any) -> sqlite3.Connection:
            nonlocal failures
            if failures < 3:
                failures += 1
                raise sqlite3.OperationalError("unable to open database file")
            return connect(*arguments, **named)

        monkeypatch.setattr(sqlite3, "connect", failing)
        monkeypatch.setattr(sqlite, "CHECKPOINT_TRANSACTIONS", 1)  # not before: it would have connected already
        kept: Any = budgets._store
        asker = principal(Budget(tokens_per_month=10**6))
        async with asyncio.timeout(90):
            await end(await budgets.reserve(asker, 1), 1)
            while failures < 3 or kept._transactions:
                await asyncio.sleep(0.01)
        told = [one.getMessage() for one in caplog.records if "cannot be moved" in one.getMessage()]
        assert len(told) == 1
        assert "unable to open database file" in told[0]
        await store.close()

    async def test_a_file_that_is_no_database_is_named_with_advice(self, tmp_path: Path) -> None:
        file = tmp_path / "budgets.sqlite"
        file.write_bytes(b"my diary, page one\n" * 500)
        message = await self.fault(tmp_path)
        assert str(file) in message
        assert "Move it away" in message
        assert file.read_bytes().startswith(b"my diary")

    async def test_a_database_of_something_else_is_left_alone(self, tmp_path: Path) -> None:
        file = tmp_path / "budgets.sqlite"
        connection = sqlite3.connect(file)
        connection.execute("CREATE TABLE diary (page TEXT)")
        connection.close()
        before = file.read_bytes()
        assert "something else" in await self.fault(tmp_path)
        assert file.read_bytes() == before

    async def test_another_version_is_not_guessed_at(self, tmp_path: Path) -> None:
        store = self.store(tmp_path)
        await store.open()
        await store.close()
        connection = sqlite3.connect(tmp_path / "budgets.sqlite")
        connection.execute("PRAGMA user_version = 9")
        connection.close()
        assert "version 9" in await self.fault(tmp_path)

    async def test_a_damaged_file_is_seen_at_the_start(self, tmp_path: Path) -> None:
        store = self.store(tmp_path)
        budgets = await store.open()
        for number in range(200):
            await budgets.reserve(principal(Budget(concurrency=1), tenant=f"tenant{number}"), 1)
        await crash(budgets)
        store.opened.clear()
        file = tmp_path / "budgets.sqlite"
        content = bytearray(file.read_bytes())
        content[4096 : len(content)] = b"\xa5" * (len(content) - 4096)
        file.write_bytes(content)
        message = await self.fault(tmp_path)
        assert str(file) in message
        assert "Move it away" in message

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    async def test_a_folder_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        folder = tmp_path / "read-only"
        os.mkdir(folder, 0o500)  # noqa: PTH102 - in one step with its mode
        assert "cannot be written" in await self.fault(folder)

    @pytest.mark.parametrize("name", ["a#b", "a?b", "a%20b"])
    async def test_a_folder_of_any_name_holds_the_file(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).mkdir()
        store = self.store(tmp_path / name)
        await store.open()
        await store.close()
        assert (tmp_path / name / "budgets.sqlite").stat().st_size > 0
        assert os.listdir(tmp_path) == [name]  # noqa: PTH208 - within a coroutine

    async def test_a_path_that_is_a_folder_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "budgets.sqlite").mkdir()
        assert "cannot be written: Is a directory" in await self.fault(tmp_path)

    async def test_a_folder_that_cannot_be_made_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        assert "cannot be written" in await self.fault(tmp_path / "file")


class TestRedisAddress:
    async def fault(self, tmp_path: Path, url: str | None, password_file: Path | None = None) -> str:
        from jubako.gate.budgets.opening import budgets

        settings = StoreUnderTest("sqlite", tmp_path, None).settings()
        changes = {"store": "redis", "redis_url": url, "redis_password_file": password_file}
        settings = settings.model_copy(update=changes)
        with pytest.raises(StartupFault) as caught:
            await budgets(settings, tmp_path).open()
        return str(caught.value)

    async def test_nobody_there(self, tmp_path: Path) -> None:
        message = await self.fault(tmp_path, "redis://127.0.0.1:1/0")
        assert "redis://127.0.0.1:1/0" in message
        assert "Start Redis there" in message

    async def test_no_address(self, tmp_path: Path) -> None:
        assert "no address" in await self.fault(tmp_path, None)

    @pytest.mark.parametrize("url", ["redis://:hunter2@localhost", "redis://u:hunter2@localhost/1"])
    async def test_a_password_in_the_address_is_refused_and_not_repeated(self, tmp_path: Path, url: str) -> None:
        message = await self.fault(tmp_path, url)
        assert "redis_password_file" in message
        assert "hunter2" not in message

    @pytest.mark.parametrize("url", ["http://localhost", "localhost:6379", "redis://"])
    async def test_another_scheme(self, tmp_path: Path, url: str) -> None:
        assert "expected redis://" in await self.fault(tmp_path, url)

    async def test_the_password_file(self, tmp_path: Path, redis_of_tests: RedisServer | None) -> None:
        if redis_of_tests is None:
            pytest.skip("redis-server is not installed (Debian: apt install redis-server)")
        assert "No such file" in await self.fault(tmp_path, redis_of_tests.url, Path("secret"))
        (tmp_path / "secret").write_text("open sesame\n")
        (tmp_path / "wrong").write_text("open barley\n")
        with redis_of_tests.client() as client:
            client.config_set("requirepass", "open sesame")
            try:
                message = await self.fault(tmp_path, redis_of_tests.url, Path("wrong"))
                assert "barley" not in message
                from jubako.gate.budgets.opening import budgets

                settings = StoreUnderTest("redis", tmp_path, redis_of_tests).settings()
                right = budgets(settings.model_copy(update={"redis_password_file": Path("secret")}), tmp_path)
                await right.open()
                await right.close()
            finally:
                client.config_set("requirepass", "")
