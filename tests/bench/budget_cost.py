"""What a request costs in budgets: `python -m tests.bench.budget_cost`. CPU is this process's, all threads."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from pathlib import Path

from jubako.vocabulary import Budget, Principal
from tests.budget_stores import StoreUnderTest, end, principal, redis_server

REQUESTS = 4000
LIMITS = Budget(10**8, 10**8, 10**9, 10**9, 10**6)


PAUSE_SECONDS = 0.005


async def measure(name: str, store: StoreUnderTest, asker: Principal, at_once: int, pause_seconds: float = 0) -> None:
    """Reserve, amend and settle, `at_once` callers side by side; what the pauses cost is not counted."""
    budgets = await store.open()
    requests = REQUESTS // at_once

    async def pause() -> None:
        if pause_seconds:
            await asyncio.sleep(random.uniform(0, 2 * pause_seconds))  # they come scattered

    async def caller(requests: int) -> None:
        for _ in range(requests):
            held = await budgets.reserve(asker, 500)
            await pause()
            await held.amend(600)
            await pause()
            await end(held, 300)
            await pause()

    async def idler(requests: int) -> None:
        for _ in range(3 * requests):
            await pause()

    await caller(100)
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller(requests) for _ in range(at_once)))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if pause_seconds:
        idle = time.process_time()
        await asyncio.gather(*(idler(requests) for _ in range(at_once)))
        cpu -= time.process_time() - idle
    print(f"{name:50} {cpu / REQUESTS * 1e6:8.1f} us CPU {wall / REQUESTS * 1e6:8.1f} us wall a request")  # noqa: T201
    await store.close()


async def main() -> None:
    """Both stores, one and two accounts, one caller and many, and requests that come scattered."""
    with tempfile.TemporaryDirectory() as name, redis_server(Path(name)) as server:
        sqlite = StoreUnderTest("sqlite", Path(name), None)
        await measure("without limits", sqlite, principal(), 1)
        stores = [sqlite] if server is None else [sqlite, StoreUnderTest("redis", Path(name), server)]
        for store in stores:
            for at_once, pause_seconds in ((1, 0), (50, 0), (16, PAUSE_SECONDS), (1, PAUSE_SECONDS)):
                how = f"{at_once} at once" + (f", {pause_seconds * 1000:g} ms between steps" if pause_seconds else "")
                await measure(f"{store.kind}, tenant, {how}", store, principal(LIMITS), at_once, pause_seconds)
                both = principal(LIMITS, LIMITS)
                await measure(f"{store.kind}, tenant and key, {how}", store, both, at_once, pause_seconds)


if __name__ == "__main__":
    asyncio.run(main())
