"""What tests of budgets share: a clock to turn, principals with limits, and both stores, Redis a real one."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redis

from jubako.gate.budgets.counted import CountedBudgets
from jubako.gate.budgets.opening import budgets
from jubako.gate.budgets.port import Reservation
from jubako.sections import BudgetSettings
from jubako.vocabulary import Budget, Limits, Policy, Principal, Scope

NOON = 1_750_000_020.25
"""A Sunday in June 2025, a quarter into a second, far from the border of a day."""

_LIMITS = Limits(**{one.name: 1 for one in dataclasses.fields(Limits)})


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def principal(
    tenant_budget: Budget | None = None, key_budget: Budget | None = None, *, tenant: str = "acme", key: str = "key1"
) -> Principal:
    """Someone with these limits; None: without."""
    scopes = frozenset({Scope.CHAT})
    policy = Policy(
        None, scopes, 1.0, 1, 60.0, 10.0, _LIMITS, tenant_budget or Budget(), key_budget or Budget()
    )  # fmt: skip
    return Principal(tenant, key, scopes, policy)


async def end(reservation: Reservation, tokens: int | None) -> None:
    """End it, and wait until the store knows."""
    told = reservation.end(tokens)
    if told is not None:
        await told


@dataclass
class RedisServer:
    """A Redis of the tests' own, without a file."""

    process: subprocess.Popen[bytes]
    url: str

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """It answers nothing, and its connections stay."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer | None]:
    """A Redis on a free port until the block ends; None where it is not installed."""
    program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder)]
    process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
    try:
        server = RedisServer(process, f"redis://127.0.0.1:{port}/0")
        give_up_at = time.monotonic() + 20
        with server.client() as client:
            while True:
                try:
                    client.ping()
                    break
                except redis.ConnectionError:
                    if process.poll() is not None or time.monotonic() > give_up_at:
                        raise
                    time.sleep(0.02)
        yield server
    finally:
        process.kill()
        process.wait()


@dataclass
class StoreUnderTest:
    """One empty store, and as many instances of the server at it as a test wants."""

    kind: str
    folder: Path
    server: RedisServer | None
    opened: list[CountedBudgets] = field(default_factory=list)

    def settings(self, lease_seconds: float = 15) -> BudgetSettings:
        return BudgetSettings(
            store="redis" if self.kind == "redis" else "sqlite",
            sqlite_file=Path("budgets.sqlite"),
            redis_url=self.server.url if self.server else None,
            redis_password_file=None,
            lease_seconds=lease_seconds,
        )

    def make(self, clock: Callable[[], float] | None = None, lease_seconds: float = 15) -> CountedBudgets:
        made = budgets(self.settings(lease_seconds), self.folder, clock)
        assert isinstance(made, CountedBudgets)
        self.opened.append(made)
        return made

    async def open(self, clock: Callable[[], float] | None = None, lease_seconds: float = 15) -> CountedBudgets:
        made = self.make(clock, lease_seconds)
        await made.open()
        return made

    async def close(self) -> None:
        for one in self.opened:
            await one.close()
        self.opened.clear()

    def rows(self) -> int:
        """How many accounts and reservations are kept."""
        if self.server is not None:
            with self.server.client() as client:
                held: int = sum(client.hlen(key) for key in client.scan_iter("jubako:{budgets}:2:held:*"))
                return held + len(list(client.scan_iter("jubako:{budgets}:2:account:*")))
        import sqlite3

        connection = sqlite3.connect(self.folder / "budgets.sqlite", isolation_level=None, timeout=20)
        try:
            connection.execute("BEGIN IMMEDIATE")  # once whoever is at work has written
            statement = "SELECT (SELECT count(*) FROM accounts) + (SELECT count(*) FROM reservations)"
            return int(connection.execute(statement).fetchone()[0])
        finally:
            connection.close()


async def crash(one: CountedBudgets) -> None:
    """Leave an instance as a killed process does: no farewell, no more leases."""
    for task in (one._beating, one._telling):
        if task is not None:
            task.cancel()
    await one._store.close()
