"""What the tests of budgets share: an empty store of each kind, Redis a real one, and a clock at noon."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from jubako.gate.budgets.counted import CountedBudgets
from tests.budget_stores import Clock, RedisServer, StoreUnderTest, redis_server


@pytest.fixture(scope="session")
def redis_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer | None]:
    """A real Redis for all of them; None where it is not installed."""
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


@pytest.fixture
async def files(tmp_path: Path) -> AsyncIterator[StoreUnderTest]:
    """An empty file."""
    made = StoreUnderTest("sqlite", tmp_path, None)
    yield made
    await made.close()
