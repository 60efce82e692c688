"""What the tests of tenures share: a look at the store below, and a wait until none is held."""

from __future__ import annotations

import asyncio

from jubako.gate.budgets.counted import CountedBudgets
from jubako.gate.budgets.sqlite import SqliteStore


def store_of(budgets: CountedBudgets) -> SqliteStore:
    """The store below."""
    assert isinstance(budgets._store, SqliteStore)
    return budgets._store


async def until_idle(budgets: CountedBudgets) -> None:
    """Until the tenure has ended."""
    tenures = store_of(budgets)._tenures
    assert tenures is not None
    async with asyncio.timeout(90):
        while tenures._ends_at is not None:
            await asyncio.sleep(0.005)
