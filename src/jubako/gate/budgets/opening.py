"""From settings to budgets: which store, where, under which name this process is known in it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path

from jubako.errors import StartupFault
from jubako.gate.budgets.counted import CountedBudgets
from jubako.gate.budgets.port import Budgets
from jubako.gate.budgets.store import Store
from jubako.sections import BudgetSettings


def budgets(settings: BudgetSettings, root: Path, clock: Callable[[], float] | None = None) -> Budgets:
    """The budgets that the settings name, not yet opened. Relative paths start at `root`.

    `clock` gives seconds since 1970; None: this machine's for SQLite, Redis's own for Redis.
    """
    instance = secrets.token_hex(8)
    lease_seconds = settings.lease_seconds
    store: Store
    if settings.store == "redis":
        from jubako.gate.budgets.redis import RedisStore

        if settings.redis_url is None:
            raise StartupFault("budgets.redis_url: budgets.store is redis, and no address is given.")
        password_file = settings.redis_password_file
        if password_file is not None:
            password_file = root / password_file.expanduser()
        store = RedisStore(
            settings.redis_url, password_file, instance=instance, lease_seconds=lease_seconds, clock=clock
        )
    else:
        from jubako.gate.budgets.sqlite import SqliteStore

        file = root / settings.sqlite_file.expanduser()
        store = SqliteStore(file, instance=instance, lease_seconds=lease_seconds, clock=clock or time.time)
    return CountedBudgets(store, lease_seconds=lease_seconds)
