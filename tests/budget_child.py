"""A process of its own at a store of budgets: asks for many places at once, and holds what it got until it is ended."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from jubako.errors import Busy
from jubako.gate.budgets.opening import budgets
from jubako.sections import BudgetSettings
from jubako.vocabulary import Budget
from tests.budget_stores import principal


async def main(settings: str, folder: str, limit: int, tasks: int) -> None:
    """Print `ready`, wait for a line, do it, print how many were granted."""
    one = budgets(BudgetSettings.model_validate_json(settings), Path(folder))
    await one.open()
    asker = principal(Budget(concurrency=limit, requests_per_minute=10_000, tokens_per_day=1_000_000))
    print("ready", flush=True)  # noqa: T201 - its parent reads it
    await asyncio.to_thread(sys.stdin.readline)

    async def ask() -> bool:
        try:
            await one.reserve(asker, 10)
        except Busy:
            return False
        return True

    granted = sum(await asyncio.gather(*(ask() for _ in range(tasks))))
    print(granted, flush=True)  # noqa: T201
    await asyncio.to_thread(sys.stdin.readline)
    await one.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
