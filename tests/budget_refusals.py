"""What tests of budgets ask to be refused: the refusal, and what it says is used."""

from __future__ import annotations

import pytest

from jubako.errors import Refusal
from jubako.gate.budgets.counted import CountedBudgets
from jubako.vocabulary import Budget, Principal
from tests.budget_stores import principal


async def refused(budgets: CountedBudgets, asker: Principal, tokens: int = 0) -> Refusal:
    """The refusal that a request gets."""
    with pytest.raises(Refusal) as caught:
        await budgets.reserve(asker, tokens)
    return caught.value


async def used_today(budgets: CountedBudgets, limit: int) -> int:
    """How many tokens of `limit` are used or held, as a refusal says."""
    with pytest.raises(Refusal) as caught:
        await budgets.reserve(principal(Budget(tokens_per_day=limit)), limit + 1)
    words = caught.value.message.split()
    return int(words[words.index("day;") + 1])
