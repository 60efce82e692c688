"""Whatever is done in whatever order, both stores count as a list of all that ever happened would."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from jubako.errors import Refusal
from jubako.gate.budgets.counted import CountedBudgets
from jubako.gate.budgets.port import Reservation
from jubako.vocabulary import Budget, Principal, Rate
from tests.budget_stores import Clock, RedisServer, StoreUnderTest, crash, end, principal, redis_server

LEASE_SECONDS = 40.0
TENANT = Budget(requests_per_minute=6, tokens_per_minute=300, tokens_per_day=800, tokens_per_month=1500, concurrency=5)
KEYS = {
    "plain": Budget(),
    "small": Budget(requests_per_minute=3, tokens_per_minute=120, concurrency=2),
    "daily": Budget(tokens_per_day=400),
}
EVE_OF_MARCH = datetime(2024, 2, 29, 23, 58, 30, 250_000, tzinfo=UTC).timestamp()
"""So that turning the clock passes every border."""


@dataclass
class Event:
    """One granted request as the model remembers it."""

    owner: int
    key: str
    requested_at: float
    tokens_at: float
    tokens: int
    reservation: Reservation | None
    place: bool = True
    ended: bool = False
    request: bool = True


def day(at: float) -> str:
    """The date in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


class Model:
    """Counts by going through everything."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.events: list[Event] = []
        self.leases: dict[int, float] = {}

    def used(self, key: str | None, without: Event | None = None) -> tuple[int, int, int, int, int]:
        now = self.clock()

        def recent(at: float) -> bool:
            return int(at) > int(now) - 61

        mine = [one for one in self.events if key in {None, one.key}]
        requests = sum(one.request and recent(one.requested_at) for one in mine)
        others = [one for one in mine if one is not without]
        minute = sum(one.tokens for one in others if recent(one.tokens_at))
        today = sum(one.tokens for one in others if day(one.tokens_at) == day(now))
        month = sum(one.tokens for one in others if day(one.tokens_at)[:7] == day(now)[:7])
        return requests, minute, today, month, sum(one.place for one in mine)

    def fits(self, key: str, requests: int, tokens: int, without: Event | None = None) -> bool:
        for budget, whose in ((TENANT, None), (KEYS[key], key)):
            used = self.used(whose, without)
            limits = (budget.requests_per_minute, budget.tokens_per_minute, budget.tokens_per_day)
            more = (requests, tokens, tokens, tokens, requests)
            for limit, one, another in zip(
                (*limits, budget.tokens_per_month, budget.concurrency), used, more, strict=True
            ):
                if limit is not None and another and one + another > limit:
                    return False
        return True

    def seen(self, by: int) -> None:
        """An instance takes or beats: it is alive, and frees what others let lapse."""
        now = self.clock()
        for owner in [one for one, expires in self.leases.items() if one != by and expires <= now]:
            del self.leases[owner]
            for event in self.events:
                if event.owner == owner and not event.ended:
                    event.place, event.tokens = False, 0
        if self.leases.get(by, 0.0) <= now:
            self.leases[by] = now + LEASE_SECONDS

    def renewed(self, by: int) -> None:
        self.leases[by] = self.clock() + LEASE_SECONDS
        self.seen(by)


class BudgetsMachine(RuleBasedStateMachine):
    def __init__(self, make_store: Callable[[Path], StoreUnderTest], instances: int) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = Clock(EVE_OF_MARCH)
        self.model = Model(self.clock)
        self.store = make_store(Path(self.folder.name))
        self.instances: list[tuple[int, CountedBudgets]] = []
        self.made = 0
        for _ in range(instances):
            self.start()

    def start(self) -> None:
        self.made += 1
        # A lease so long that no task renews it while the rules run.
        budgets = self.runner.run(self.store.open(self.clock, LEASE_SECONDS))
        self.model.renewed(self.made)
        self.instances.append((self.made, budgets))

    def asker(self, key: str) -> Principal:
        return principal(TENANT, KEYS[key], key=key)

    def alive(self, pick: int) -> Event:
        open_events = [one for one in self.model.events if one.reservation is not None and not one.ended]
        return open_events[pick % len(open_events)]

    def some_alive(self) -> bool:
        return any(one.reservation is not None and not one.ended for one in self.model.events)

    @rule(which=st.integers(0, 1), key=st.sampled_from(sorted(KEYS)), tokens=st.integers(0, 130))
    def reserve(self, which: int, key: str, tokens: int) -> None:
        owner, budgets = self.instances[which % len(self.instances)]
        self.model.seen(owner)
        expected = self.model.fits(key, 1, tokens)
        try:
            reservation = self.runner.run(budgets.reserve(self.asker(key), tokens))
        except Refusal as refusal:
            granted, rates = False, refusal.rates
        else:
            granted, rates = True, reservation.rates
            self.model.events.append(Event(owner, key, self.clock(), self.clock(), tokens, reservation))
        assert granted == expected
        assert rates is not None
        self.rate_is_true(key, rates.requests, 0)
        self.rate_is_true(key, rates.tokens, 1)

    def rate_is_true(self, key: str, rate: Rate | None, which: int) -> None:
        limits = [(TENANT.requests_per_minute, TENANT.tokens_per_minute)[which]]
        left = [max(0, (limits[0] or 0) - self.model.used(None)[which])]
        limit = (KEYS[key].requests_per_minute, KEYS[key].tokens_per_minute)[which]
        if limit is not None:
            left.append(max(0, limit - self.model.used(key)[which]))
        assert rate is not None
        assert rate.remaining == min(left)

    @precondition(some_alive)
    @rule(pick=st.integers(0, 20), tokens=st.integers(0, 200))
    def settle(self, pick: int, tokens: int) -> None:
        event = self.alive(pick)
        assert event.reservation is not None
        self.runner.run(end(event.reservation, tokens))
        event.tokens, event.place, event.ended = tokens, False, True

    @precondition(some_alive)
    @rule(pick=st.integers(0, 20))
    def release(self, pick: int) -> None:
        event = self.alive(pick)
        assert event.reservation is not None
        self.runner.run(end(event.reservation, None))
        self.runner.run(end(event.reservation, 77))
        event.tokens, event.place, event.request, event.ended = 0, False, False, True

    @precondition(some_alive)
    @rule(pick=st.integers(0, 20), tokens=st.integers(0, 130))
    def amend(self, pick: int, tokens: int) -> None:
        event = self.alive(pick)
        reservation = event.reservation
        assert reservation is not None
        more = tokens > event.tokens
        expected = not more or self.model.fits(event.key, 0, tokens, without=event)
        held = reservation._tokens  # type: ignore[attr-defined] # what it thinks, if it was freed meanwhile
        try:
            self.runner.run(reservation.amend(tokens))
        except Refusal:
            assert not expected
        else:
            if tokens == held:
                return  # it did not need to ask
            assert expected
            if more:
                event.tokens_at = self.clock()
            event.tokens = tokens

    @rule(seconds=st.sampled_from([0.25, 0.75, 3.0, 17.5, 29.0, 60.75, 61.0, 3600.0, 86_400.0, 27 * 86_400.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(which=st.integers(0, 1))
    def beat(self, which: int) -> None:
        owner, budgets = self.instances[which % len(self.instances)]
        self.runner.run(budgets._store.beat())
        self.model.renewed(owner)

    @rule(which=st.integers(0, 1), politely=st.booleans())
    def replace(self, which: int, politely: bool) -> None:
        owner, budgets = self.instances.pop(which % len(self.instances))
        self.runner.run(budgets.close() if politely else crash(budgets))
        for event in self.model.events:
            if event.owner == owner:
                event.reservation = None
                if politely and not event.ended:
                    event.tokens, event.place, event.ended = 0, False, True
        if politely:
            self.model.leases.pop(owner, None)
        self.store.opened.remove(budgets)
        self.start()

    @invariant()
    def nothing_is_left_behind(self) -> None:
        assert all(not budgets._untold and not budgets._away for _, budgets in self.instances)

    def teardown(self) -> None:
        self.runner.run(self.store.close())
        self.runner.close()
        self.folder.cleanup()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer | None]:
    """A real Redis; None where it is not installed."""
    with redis_server(tmp_path_factory.mktemp("redis")) as one:
        yield one


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("kind", "instances"), [("sqlite", 1), ("sqlite", 2), ("redis", 2)])
def test_stores_count_as_the_model_does(kind: str, instances: int, server: RedisServer | None) -> None:
    """Every answer and every number told is the model's; one that is alone decides in memory."""
    if kind == "redis" and server is None:
        pytest.skip("redis-server is not installed (Debian: apt install redis-server)")

    def make_store(folder: Path) -> StoreUnderTest:
        if kind == "sqlite" or server is None:
            return StoreUnderTest("sqlite", folder, None)
        with server.client() as client:
            client.flushall()
        return StoreUnderTest("redis", folder, server)

    run_state_machine_as_test(
        lambda: BudgetsMachine(make_store, instances),  # type: ignore[arg-type] # it is only called
        settings=settings(
            max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
