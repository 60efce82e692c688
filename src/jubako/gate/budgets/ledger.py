"""The tables of the SQLite store, and what one instance reads and writes there in a transaction that its caller holds.

What is decided is decided in its `Tally`; this looks up what that does not remember, and writes what it has changed.
Each statement lets other threads of Python come first, and may wait for them long: many rows are one statement. Knows
nothing of threads, of waiting for locks, or of who asks.
"""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from jubako.errors import StartupFault
from jubako.gate.budgets.store import KEPT_SECONDS
from jubako.gate.budgets.tally import NEVER_SEEN, Changes, Held, Missing, Tally
from jubako.gate.budgets.windows import Account

APPLICATION = 0x4A55424B
VERSION = 2
PRUNED_ACCOUNTS = 1000
"""Looked at each time for being idle: all get their turn, and no turn takes long."""

_SCHEMA = (
    "CREATE TABLE accounts (name TEXT PRIMARY KEY, expires INTEGER, state BLOB NOT NULL) STRICT",
    "CREATE TABLE leases (instance TEXT PRIMARY KEY, expires REAL NOT NULL) STRICT, WITHOUT ROWID",
    # Of the tenant's account and the key's, either may be absent. A reservation that was reaped stays, with no tokens.
    """CREATE TABLE reservations (
        instance TEXT NOT NULL, number INTEGER NOT NULL,
        one TEXT NOT NULL, one_counted INTEGER NOT NULL, two TEXT, two_counted INTEGER,
        requested_at INTEGER NOT NULL, tokens_at INTEGER NOT NULL, tokens INTEGER NOT NULL, reaped_at INTEGER,
        PRIMARY KEY (instance, number)) STRICT, WITHOUT ROWID""",
    "CREATE INDEX reaped ON reservations (reaped_at) WHERE reaped_at IS NOT NULL",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
)
ROWS_AT_ONCE = 64
_HELD = "one, one_counted, two, two_counted, requested_at, tokens_at, tokens, reaped_at"


def prepare(connection: sqlite3.Connection, now: float) -> None:
    """Check that the file is ours, whole and of this version; make the tables in an empty one."""
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("BEGIN IMMEDIATE")
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if not tables and not application:
        for statement in _SCHEMA:
            connection.execute(statement)
    elif application != APPLICATION:
        raise StartupFault("it is a database of something else")
    elif version == 1:
        _take_over(connection, now)
    elif version != VERSION:
        raise StartupFault(f"it has schema version {version}, and this Jubako knows version {VERSION} only")
    connection.execute("COMMIT")
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise StartupFault("it is damaged")
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StartupFault("its file system has no shared memory for SQLite's write-ahead log")


def _take_over(connection: sqlite3.Connection, now: float) -> None:
    """From the first version, whose accounts did not say what is held: after the places taken, eight bytes each."""
    (alive,) = connection.execute("SELECT count(*) FROM leases WHERE expires > ?", (now,)).fetchone()
    if alive:
        raise StartupFault("a server of an earlier version uses it, or did until a moment ago; let that end first")
    held: Counter[str] = Counter()
    for one, two, tokens in connection.execute("SELECT one, two, tokens FROM reservations"):
        held.update(dict.fromkeys([name for name in (one, two) if name is not None], tokens))
    for name, state in connection.execute("SELECT name, state FROM accounts").fetchall():
        numbers = array("q", state)
        numbers.insert(1, held[name])
        connection.execute("UPDATE accounts SET state = ? WHERE name = ?", (numbers.tobytes(), name))
    connection.execute(f"PRAGMA user_version = {VERSION}")


T = TypeVar("T")


class Ledger:
    """One instance's hand in the file."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        tally: Tally,
        instance: str,
        lease_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self.tally = tally
        self._execute = connection.execute
        self._instance = instance
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._data_version = -1
        self._leases: dict[str, float] | None = None
        """When each lapses, as the file says; None: it has to be asked."""
        self._pruned_to = ""

    def begin(self) -> None:
        """Take the file's write lock; raises `sqlite3.OperationalError` while another has it."""
        self._execute("BEGIN IMMEDIATE")

    def is_as_remembered(self) -> bool:
        """Whether nobody else has written since the last `redo`."""
        return self._read_data_version() == self._data_version

    def forget(self) -> None:
        """Others may have written: what this instance did and has not written yet has to be done again."""
        self.tally.forget()
        self._leases = None
        self._data_version = -1

    def redo(self) -> None:
        """Remember from now on, and do again what is not on disk, upon what the file says now."""
        self._data_version = self._read_data_version()
        for deed in self.tally.deeds:
            self.answer(lambda tally, deed=deed: tally.redo(deed))  # type: ignore[misc]

    def answer(self, ask: Callable[[Tally], T]) -> T:
        """Ask the tally, and look up what it misses."""
        while True:
            try:
                return ask(self.tally)
            except Missing as missing:
                if missing.what is None:
                    self._see_leases(self._clock())
                elif isinstance(missing.what, str):
                    self.tally.learn_account(missing.what, self._read_account(missing.what))
                else:
                    self.tally.learn_reservation(missing.what, self._read_reservation(missing.what))

    def others_alive(self) -> bool:
        """Whether another instance has a lease that has not lapsed."""
        now = self._clock()
        return any(expires > now and one != self._instance for one, expires in self._known_leases().items())

    def write(self, changes: Changes) -> None:
        """Write what the tally has changed."""
        for at in range(0, len(changes.accounts), ROWS_AT_ONCE):
            some = changes.accounts[at : at + ROWS_AT_ONCE]
            self._execute(
                f"INSERT INTO accounts VALUES {_rows(3, len(some))} "  # noqa: S608 - question marks
                "ON CONFLICT DO UPDATE SET expires = excluded.expires, state = excluded.state",
                [value for row in some for value in row],
            )
        for at in range(0, len(changes.reservations), ROWS_AT_ONCE):
            held = changes.reservations[at : at + ROWS_AT_ONCE]
            values = [value for number, one in held for value in (self._instance, number, *_row(one))]
            self._execute(f"REPLACE INTO reservations VALUES {_rows(10, len(held))}", values)  # noqa: S608 - the same
        if changes.ended:
            self._execute(
                "DELETE FROM reservations WHERE instance = ? AND number IN (SELECT value FROM json_each(?))",
                (self._instance, json.dumps(changes.ended)),
            )
        if changes.idle_accounts:
            self._forget_accounts(changes.idle_accounts)

    def beat(self) -> None:
        """See `Store.beat`."""
        now = self._clock()
        self._renew(now)
        self._see_leases(now)
        statement = "DELETE FROM reservations WHERE reaped_at < ?"
        if self._execute(statement, (int(now) - KEPT_SECONDS,)).rowcount:
            self.tally.forget_reaped()
        names = self._execute(
            "SELECT name, expires FROM accounts WHERE name > ? ORDER BY name LIMIT ?",
            (self._pruned_to, PRUNED_ACCOUNTS),
        ).fetchall()
        self._pruned_to = names[-1][0] if len(names) == PRUNED_ACCOUNTS else ""
        # One that is in use is written again, with all that is remembered of it.
        idle = [name for name, expires in names if expires is not None and expires <= now]
        if idle:
            self._forget_accounts(idle)

    def leave(self) -> None:
        """See `Store.leave`."""
        self.write(self.tally.changes())
        self._reap(self._instance, int(self._clock()))
        self.write(self.tally.changes())
        self._execute("DELETE FROM reservations WHERE instance = ?", (self._instance,))
        self._execute("DELETE FROM leases WHERE instance = ?", (self._instance,))
        self.forget()

    def _read_data_version(self) -> int:
        """It changes when another connection writes."""
        (version,) = self._execute("PRAGMA data_version").fetchone()
        return int(version)

    def _forget_accounts(self, names: list[str]) -> None:
        self._execute("DELETE FROM accounts WHERE name IN (SELECT value FROM json_each(?))", (json.dumps(names),))

    def _known_leases(self) -> dict[str, float]:
        if self._leases is None:
            self._leases = dict(self._execute("SELECT instance, expires FROM leases").fetchall())
        return self._leases

    def _renew(self, now: float) -> None:
        expires = self._known_leases()[self._instance] = now + self._lease_seconds
        self._execute(
            "INSERT INTO leases VALUES (?, ?) ON CONFLICT DO UPDATE SET expires = excluded.expires",
            (self._instance, expires),
        )

    def _see_leases(self, now: float) -> None:
        """Free what others let lapse. Whoever asks is alive, whatever its lease says."""
        leases = self._known_leases()
        for instance in [one for one, expires in leases.items() if expires <= now and one != self._instance]:
            self._reap(instance, int(now))
            self._execute("DELETE FROM leases WHERE instance = ?", (instance,))
            del leases[instance]
        if leases.get(self._instance, NEVER_SEEN) <= now:
            self._renew(now)
        self.tally.leases_due = min(leases.values())

    def _reap(self, instance: str, second: int) -> None:
        """The reservations of `instance` as the file has them."""
        rows = self._execute(
            f"SELECT {_HELD} FROM reservations WHERE instance = ? AND (reaped_at IS NULL OR tokens > 0)",  # noqa: S608
            (instance,),
        ).fetchall()
        for held in map(_read, rows):
            for name, counted in held.accounts:
                account = self.answer(lambda tally, name=name: tally.account(name, second))  # type: ignore[misc]
                account.add(held.tokens_at, counted, 0, -held.tokens)
                account.hold(-1 if held.reaped_at is None else 0, -held.tokens)
                self.tally.touch(name, account)
        self._execute("UPDATE reservations SET tokens = 0, reaped_at = ? WHERE instance = ?", (second, instance))

    def _read_account(self, name: str) -> Account:
        row = self._execute("SELECT state FROM accounts WHERE name = ?", (name,)).fetchone()
        return Account() if row is None else Account.unpack(row[0])

    def _read_reservation(self, number: int) -> Held | None:
        row = self._execute(
            f"SELECT {_HELD} FROM reservations WHERE instance = ? AND number = ?",  # noqa: S608 - constant
            (self._instance, number),
        ).fetchone()
        return None if row is None else _read(row)


def _rows(columns: int, rows: int) -> str:
    return ", ".join(["(" + ", ".join("?" * columns) + ")"] * rows)


def _row(held: Held) -> tuple[Any, ...]:
    two = held.accounts[1] if len(held.accounts) > 1 else (None, None)
    return (*held.accounts[0], *two, held.requested_at, held.tokens_at, held.tokens, held.reaped_at)


def _read(row: tuple[str, int, str | None, int | None, int, int, int, int | None]) -> Held:
    one, one_counted, two, two_counted, requested_at, tokens_at, tokens, reaped_at = row
    accounts = ((one, one_counted),) if two is None or two_counted is None else ((one, one_counted), (two, two_counted))
    return Held(accounts, requested_at, tokens_at, tokens, reaped_at)
