"""A process that is ended in the middle of a tenure: some of what it settled is on disk, and some is not."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from jubako.gate.budgets.counted import CountedBudgets
from jubako.gate.budgets.opening import budgets
from jubako.gate.budgets.sqlite import SqliteStore
from jubako.sections import BudgetSettings
from jubako.vocabulary import Budget
from tests.budget_stores import end, principal

LIMITS = Budget(concurrency=100, tokens_per_day=1000)
SETTLED_ON_DISK = 50
HELD_ON_DISK = 3


async def main(settings: str, folder: str) -> None:
    """Print `on disk` once that is so, do more, print `more` before that is on disk, and go on for ever."""
    one = budgets(BudgetSettings.model_validate_json(settings), Path(folder))
    assert isinstance(one, CountedBudgets)
    store = one._store
    assert isinstance(store, SqliteStore)
    await one.open()
    asker = principal(LIMITS)
    for _ in range(HELD_ON_DISK):
        await one.reserve(asker, 20)
    for _ in range(SETTLED_ON_DISK):
        await end(await one.reserve(asker, 5), 1)
    while store._tally.deeds:
        await asyncio.sleep(0.001)
    # Of what was in the last transaction all is on disk when the next one writes.
    await one._store.beat()
    print("on disk", flush=True)  # noqa: T201 - its parent reads it
    said = False
    while True:
        await end(await one.reserve(asker, 5), 0)
        await one.reserve(asker, 0)
        if not said:
            print("more", flush=True)  # noqa: T201
            said = True
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
