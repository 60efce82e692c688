"""What a request costs in budgets: `python -m tests.bench.budget_cost`. CPU is this process's, all threads."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from jubako.vocabulary import Budget, Principal
from tests.budget_stores import StoreUnderTest, principal, redis_server

REQUESTS = 4000
LIMITS = Budget(10**8, 10**8, 10**9, 10**9, 10**6)


async def measure(name: str, store: StoreUnderTest, asker: Principal, at_once: int) -> None:
    """Reserve and settle, `at_once` callers side by side."""
    budgets = await store.open()

    async def caller(requests: int) -> None:
        for _ in range(requests):
            await (await budgets.reserve(asker, 500)).settle(300)

    await caller(100)
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller(REQUESTS // at_once) for _ in range(at_once)))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{name:34} {cpu / REQUESTS * 1e6:8.1f} us CPU {wall / REQUESTS * 1e6:8.1f} us wall a request")  # noqa: T201
    await store.close()


async def main() -> None:
    """Both stores, one and two accounts, one caller and fifty."""
    with tempfile.TemporaryDirectory() as name, redis_server(Path(name)) as server:
        sqlite = StoreUnderTest("sqlite", Path(name), None)
        await measure("without limits", sqlite, principal(), 1)
        stores = [sqlite] if server is None else [sqlite, StoreUnderTest("redis", Path(name), server)]
        for store in stores:
            for at_once in (1, 50):
                await measure(f"{store.kind}, tenant, {at_once} at once", store, principal(LIMITS), at_once)
                both = principal(LIMITS, LIMITS)
                await measure(f"{store.kind}, tenant and key, {at_once} at once", store, both, at_once)


if __name__ == "__main__":
    asyncio.run(main())
